"""`midstream`, for people: chat with an agent, steer and halt it, and see what it waits for."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, NoReturn

from langgraph_sdk import get_client, get_sync_client
from pydantic import BaseModel

from midstream_client import _failures
from midstream_client.errors import MidstreamError
from midstream_client.interrupts import PendingInterrupt
from midstream_client.sync_client import SyncMidstream
from midstream_client.transcript import harmless

DEFAULT_URL = "http://127.0.0.1:2024"
"""Where `langgraph dev` listens."""

MAX_LIMIT = 1000
"""How many threads the server lists at once."""

NARROWEST = 20
"""The fewest columns for what is told last in a table."""

NEEDS_EXTRA = "this needs two more packages: pip install 'langgraph-midstream[cli]'"


class UsageError(MidstreamError):
    """The command line is not one that `midstream` takes."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. `{self.prog} --help` says what it takes")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code: 1 if it could not be done, 2 if nobody knows what it is."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    url = DEFAULT_URL
    try:
        parsed = _parser().parse_args(given)
        url = parsed.url
        command: Callable[[argparse.Namespace], None] = parsed.command
        command(parsed)
    except _failures.EXPECTED as error:
        text = _failures.line(error, url)
        said = {"error": type(error).__name__, "message": text, **_failures.facts(error)}
        print(_json(said) if "--json" in given else f"midstream: {text}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        return 130
    return 0


def chat(parsed: argparse.Namespace) -> None:
    try:
        # Not above: every other command does without a terminal, and without these packages.
        from midstream_client import screen
    except ImportError:
        raise MidstreamError(NEEDS_EXTRA) from None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise MidstreamError("chat needs a terminal; in scripts use `midstream send` and `midstream steer`")

    async def run() -> str:
        async with get_client(url=parsed.url, **_key(parsed)) as client:
            return await screen.run(client, parsed.assistant, parsed.thread)

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
    rows = [[each.id, each.kind, harmless(each.reason or "") or _words(each.messages)] for each in pending]
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
            raise UsageError(
                f'an answer is INTERRUPT=JSON, such as ID=\'{{"type": "approve"}}\', not {pair!r}'
            )
        try:
            answers[name] = json.loads(answer)
        except json.JSONDecodeError as error:
            raise UsageError(f'the answer to {name!r} is not JSON ({error}): put a text into ""') from None
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
        if receipt.thread_status == "busy":
            there = "a run is there"
        elif receipt.thread_status != "idle" and midstream.interrupts(receipt.thread_id):
            there = "it waits for the answer to what is asked"
        else:
            there = "it waits for the next run"
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
    *names, told = heads
    table = Table(box=None, pad_edge=False)
    for name in names:
        # What another command takes is whole, also where a terminal has to break the line.
        table.add_column(name, no_wrap=True)
    table.add_column(told, overflow="fold")
    for row in rows:
        table.add_row(*row)
    whole = sum(max(map(len, column)) + 1 for column in list(zip(heads, *rows, strict=True))[:-1])
    Console(width=max(Console().width, whole + NARROWEST)).print(table)


def _limit(argument: str) -> int:
    if not argument.isdecimal() or not 1 <= int(argument) <= MAX_LIMIT:
        raise argparse.ArgumentTypeError(f"must be from 1 to {MAX_LIMIT}, not {argument!r}")
    return int(argument)


def _json(facts: Any) -> str:
    return json.dumps(facts, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


def _words(messages: Sequence[dict[str, Any]]) -> str:
    return harmless(" / ".join(str(message["content"]) for message in messages))


def _text(argument: str) -> str:
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError("must be UTF-8") from None
    return argument


def _seconds(argument: str) -> float:
    try:
        seconds = float(argument)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, such as 30, not {argument!r}")
    return seconds


def _parser() -> Parser:
    shared = Parser(add_help=False)
    shared.add_argument(
        "--url",
        default=os.environ.get("LANGGRAPH_URL", DEFAULT_URL),
        help="the LangGraph server; LANGGRAPH_URL, or %(default)s",
    )
    shared.add_argument("--api-key", help="if not given, LANGGRAPH_API_KEY or LANGSMITH_API_KEY")
    shared.add_argument("--json", action="store_true", help="print JSON, for scripts")

    addressed = Parser(add_help=False)
    addressed.add_argument("--run", help="only this run, or one that resumes its turn")
    addressed.add_argument("--node", help="only the model node of this name")
    addressed.add_argument(
        "--wait", type=_seconds, metavar="SECONDS", help="wait for what becomes of it, at most this long"
    )

    parser = Parser(prog="midstream", description=__doc__)
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
    added.add_argument("text", type=_text)

    added = add(halt, "end the run and keep what was written", addressed)
    added.add_argument("thread")
    added.add_argument("reason", type=_text)

    added = add(withdraw, "take a request back")
    added.add_argument("thread")
    added.add_argument("request")

    added = add(send, "bring a text to the agent once: steer what runs, or start a run")
    added.add_argument("thread")
    added.add_argument("text", type=_text)
    added.add_argument("--assistant", required=True)
    added.add_argument("--id", help="a UUID; with the same one the text is not delivered again")

    added = add(requests, "list the requests that wait on a thread")
    added.add_argument("thread")

    added = add(threads, "list threads")
    added.add_argument("--limit", type=_limit, default=20, help="how many; %(default)s if not given")
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
