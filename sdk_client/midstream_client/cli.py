"""`midstream`, for people: chat with an agent, steer and halt it, and see what it waits for."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import httpx
from langgraph_sdk import get_client, get_sync_client
from pydantic import BaseModel, ValidationError

from midstream_client.errors import MidstreamError
from midstream_client.interrupts import PendingInterrupt
from midstream_client.sync_client import SyncMidstream

DEFAULT_URL = "http://127.0.0.1:2024"
"""Where `langgraph dev` listens."""

NEEDS_EXTRA = "this needs two more packages: pip install 'langgraph-midstream[cli]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    try:
        command: Callable[[argparse.Namespace], None] = parsed.command
        command(parsed)
    except (MidstreamError, ValidationError) as error:
        return _fail(str(error))
    except httpx.HTTPStatusError as error:
        return _fail(f"the server answered {error.response.status_code}: {error}")
    except httpx.TransportError as error:
        return _fail(f"no answer from {parsed.url}: {error or type(error).__name__}")
    except KeyboardInterrupt:
        return 130
    return 0


def chat(parsed: argparse.Namespace) -> None:
    try:
        # Not above: every other command does without a terminal, and without these packages.
        from midstream_client import chat as terminal
    except ImportError:
        raise MidstreamError(NEEDS_EXTRA) from None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise MidstreamError("chat needs a terminal; in scripts use `midstream send` and `midstream steer`")

    async def run() -> str:
        async with get_client(url=parsed.url, **_key(parsed)) as client:
            return await terminal.run(client, parsed.assistant, parsed.thread)

    print(asyncio.run(run()))


def steer(parsed: argparse.Namespace) -> None:
    with _client(parsed) as client:
        midstream = SyncMidstream(client)
        receipt = midstream.steer(parsed.thread, parsed.text, run_id=parsed.run, node=parsed.node)
        _tell_request(parsed, midstream, receipt)


def halt(parsed: argparse.Namespace) -> None:
    with _client(parsed) as client:
        midstream = SyncMidstream(client)
        receipt = midstream.halt(parsed.thread, parsed.reason, run_id=parsed.run, node=parsed.node)
        _tell_request(parsed, midstream, receipt)


def withdraw(parsed: argparse.Namespace) -> None:
    with _client(parsed) as client:
        receipt = SyncMidstream(client).withdraw(parsed.thread, parsed.request)
        _tell(parsed, receipt, f"withdrawn: {receipt.id}")


def send(parsed: argparse.Namespace) -> None:
    with _client(parsed) as client:
        sent = SyncMidstream(client).send(parsed.thread, parsed.assistant, parsed.text, id=parsed.id)
        _tell(parsed, sent, f"{sent.how}: {sent.run_id or 'no run'}")


def requests(parsed: argparse.Namespace) -> None:
    with _client(parsed) as client:
        pending = SyncMidstream(client).pending_requests(parsed.thread)
    rows = [[each.id, each.kind, each.reason or _words(each.messages)] for each in pending]
    _table(parsed, pending, ["request", "kind", "says"], rows, empty="nothing is pending")


def threads(parsed: argparse.Namespace) -> None:
    with _client(parsed) as client:
        found = client.threads.search(limit=parsed.limit, status=parsed.status)
    facts = [
        {name: each[name] for name in ("thread_id", "status", "updated_at", "metadata")} for each in found
    ]
    rows = [[each["thread_id"], each["status"], str(each["updated_at"])[:19]] for each in found]
    _table(parsed, facts, ["thread", "status", "updated"], rows, empty="no threads")


def interrupts(parsed: argparse.Namespace) -> None:
    with _client(parsed) as client:
        pending = SyncMidstream(client).interrupts(parsed.thread)
    rows = [[each.id, each.kind, asked(each)] for each in pending]
    _table(parsed, pending, ["interrupt", "kind", "asks"], rows, empty="the thread waits for nobody")


def resume(parsed: argparse.Namespace) -> None:
    answers = {}
    for pair in parsed.answer:
        name, equals, answer = pair.partition("=")
        if not equals:
            raise MidstreamError(f"an answer is INTERRUPT=JSON, not {pair!r}")
        try:
            answers[name] = json.loads(answer)
        except json.JSONDecodeError as error:
            raise MidstreamError(f"the answer to {name!r} is not JSON: {error}") from None
    with _client(parsed) as client:
        resumed = SyncMidstream(client).resume(parsed.thread, parsed.assistant, answers)
    left = ", ".join(each.id for each in resumed.open) or "nothing"
    _tell(parsed, resumed, f"run {resumed.run_id}: {resumed.status}; still open: {left}")


def asked(interrupt: PendingInterrupt) -> str:
    """Returns what an interrupt asks, in a line."""
    if not interrupt.actions:
        return json.dumps(interrupt.value, ensure_ascii=False)
    return "; ".join(
        f"{action.name}({', '.join(f'{name}={value!r}' for name, value in action.args.items())})"
        for action in interrupt.actions
    )


def _tell_request(parsed: argparse.Namespace, midstream: SyncMidstream, receipt: Any) -> None:
    if not parsed.wait:
        there = "a run is there" if receipt.thread_status == "busy" else "it waits for the next run"
        _tell(parsed, receipt, f"accepted: {receipt.id} (the thread is {receipt.thread_status}: {there})")
        return
    outcome = midstream.outcome(receipt, timeout=parsed.wait)
    _tell(parsed, outcome, f"{outcome.outcome}: {receipt.id} in run {outcome.run_id or '-'}")


def _client(parsed: argparse.Namespace) -> Any:
    return get_sync_client(url=parsed.url, **_key(parsed))


def _key(parsed: argparse.Namespace) -> dict[str, Any]:
    """Returns the option for a key that was given; without it the SDK looks into the environment."""
    return {} if parsed.api_key is None else {"api_key": parsed.api_key}


def _tell(parsed: argparse.Namespace, facts: Any, line: str) -> None:
    print(_json(facts) if parsed.json else line)


def _table(
    parsed: argparse.Namespace, facts: Any, heads: list[str], rows: list[list[str]], *, empty: str
) -> None:
    if parsed.json:
        print(_json(facts))
        return
    if not rows:
        print(empty)
        return
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        for row in rows:
            print("  ".join(row))
        return
    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _json(facts: Any) -> str:
    return json.dumps(facts, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


def _words(messages: Sequence[dict[str, Any]]) -> str:
    return " / ".join(str(message["content"]) for message in messages)


def _fail(reason: str) -> int:
    print(f"midstream: {reason}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--url",
        default=os.environ.get("LANGGRAPH_URL", DEFAULT_URL),
        help="the LangGraph server; LANGGRAPH_URL, or %(default)s",
    )
    shared.add_argument("--api-key", help="if not given, LANGGRAPH_API_KEY or LANGSMITH_API_KEY")
    shared.add_argument("--json", action="store_true", help="print JSON, for scripts")

    addressed = argparse.ArgumentParser(add_help=False)
    addressed.add_argument("--run", help="only this run, or one that resumes its turn")
    addressed.add_argument("--node", help="only the model node of this name")
    addressed.add_argument(
        "--wait", type=float, metavar="SECONDS", help="wait for what becomes of it, at most this long"
    )

    parser = argparse.ArgumentParser(prog="midstream", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(command: Callable[[argparse.Namespace], None], text: str, *parents: Any) -> Any:
        added = commands.add_parser(command.__name__, help=text, description=text, parents=[shared, *parents])
        added.set_defaults(command=command)
        return added

    added = add(chat, "talk with an agent; what you type while it answers steers it")
    added.add_argument("--assistant", required=True)
    added.add_argument("--thread", help="go on with this thread; a new one if not given")

    added = add(steer, "put a text into the answer that is streaming", addressed)
    added.add_argument("thread")
    added.add_argument("text")

    added = add(halt, "end the run and keep what was written", addressed)
    added.add_argument("thread")
    added.add_argument("reason")

    added = add(withdraw, "take a request back")
    added.add_argument("thread")
    added.add_argument("request")

    added = add(send, "bring a text to the agent once: steer what runs, or start a run")
    added.add_argument("thread")
    added.add_argument("text")
    added.add_argument("--assistant", required=True)
    added.add_argument("--id", help="a UUID; with the same one the text is not delivered again")

    added = add(requests, "list the requests that wait on a thread")
    added.add_argument("thread")

    added = add(threads, "list threads")
    added.add_argument("--limit", type=int, default=20)
    added.add_argument("--status", choices=["idle", "busy", "interrupted", "error"])

    added = add(interrupts, "list what a thread waits for")
    added.add_argument("thread")

    added = add(resume, "answer what a thread waits for")
    added.add_argument("thread")
    added.add_argument("answer", nargs="+", metavar="INTERRUPT=JSON")
    added.add_argument("--assistant", required=True)
    return parser


if __name__ == "__main__":
    sys.exit(main())
