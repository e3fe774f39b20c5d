"""A host session to watch: a real model's answer is steered in mid-sentence, and another one halted.

`make demo` runs this. It starts `langgraph dev` with the default agent, talks to it with nothing but the
stock `langgraph-sdk`, and ends everything it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

ROOT = Path(__file__).resolve().parents[1]
STARTS_WITHIN_SECONDS = 120.0
SHOWN_TOKENS = 40
"""How much of an answer a person reads before interfering."""

STORY = "Write a long story about a lighthouse keeper named Jameson."
STEER = "Actually, stop the story and tell me in one sentence what a cat is."
QUESTION = "Explain in detail how a lighthouse works."
REASON = "that is enough for a demo"

FANCY = sys.stdout.isatty() and "NO_COLOR" not in os.environ
DIM, BOLD, GREEN, YELLOW, PLAIN = (
    ("\033[2m", "\033[1m", "\033[32m", "\033[33m", "\033[0m") if FANCY else [""] * 5
)


def main() -> int:
    say(f"{BOLD}midstream: steer and halt a real model's answer, in one run{PLAIN}\n")
    try:
        with server() as url:
            asyncio.run(session(url))
    except (KeyboardInterrupt, asyncio.CancelledError) as stopped:
        say("\n\nInterrupted; everything that was started is ended.")
        return 128 + (signal.SIGINT if isinstance(stopped, KeyboardInterrupt) else signal.SIGTERM)
    say(f"\n{GREEN}Done; everything that was started is ended.{PLAIN}")
    return 0


async def session(url: str) -> None:
    async with cancelled_by(signal.SIGTERM), get_client(url=url, api_key=None) as client:
        say(f"\n{BOLD}1. Steer{PLAIN}   the person changes their mind in mid-sentence\n")
        thread: str = (await client.threads.create())["thread_id"]
        screen = Screen()
        await answered(client, thread, STORY, screen, then=steer)
        await show_run(client, thread, screen)
        await show_thread(client, thread)

        say(f"\n{BOLD}2. Halt{PLAIN}    the person has read enough\n")
        thread = (await client.threads.create())["thread_id"]
        screen = Screen()
        await answered(client, thread, QUESTION, screen, then=halt)
        await show_run(client, thread, screen)
        await show_thread(client, thread)


async def steer(client: LangGraphClient, thread: str, screen: Screen) -> None:
    async with screen.person(STEER):
        request = {"kind": "steer", "messages": [{"role": "user", "content": STEER}]}
        await post(client, thread, request, screen)


async def halt(client: LangGraphClient, thread: str, screen: Screen) -> None:
    async with screen.person(f"/halt {REASON}"):
        await post(client, thread, {"kind": "halt", "reason": REASON}, screen)


async def post(client: LangGraphClient, thread: str, request: dict[str, Any], screen: Screen) -> None:
    """The whole of it: a stock state update with the one key `preemption`."""
    screen.posted_at = time.perf_counter()
    answer: Any = await client.threads.update_state(
        thread, {"preemption": {"id": str(uuid.uuid4()), **request}}
    )
    receipt = answer["preemption"]
    screen.note(f"accepted: request {receipt['id'][:8]}, the thread is {receipt['thread_status']}")


async def answered(client: LangGraphClient, thread: str, text: str, screen: Screen, *, then: Any) -> None:
    """Streams a run to the screen, and interferes once after some tokens."""
    async with screen.person(text):
        pass
    interfering: asyncio.Task[None] | None = None
    async for event, data in run_events(client, thread, text):
        if event == "metadata":
            screen.run_ids.append(data["run_id"])
        elif event == "messages":
            screen.token(data[0])
        elif event == "custom":
            screen.preemption(data)
        elif event == "error":
            raise SystemExit(f"the run failed: {data}")
        if interfering is None and screen.tokens >= SHOWN_TOKENS:
            interfering = asyncio.create_task(then(client, thread, screen))
    if interfering is None:
        raise SystemExit(
            f"\nThe answer was over before its token {SHOWN_TOKENS}: try another MIDSTREAM_MODEL."
        )
    await interfering
    screen.line_end()


async def run_events(client: LangGraphClient, thread: str, text: str) -> AsyncIterator[tuple[str, Any]]:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    stream = client.runs.stream(thread, "agent", input=asked, stream_mode=["messages-tuple", "custom"])
    async for part in stream:
        yield part.event, part.data


async def show_run(client: LangGraphClient, thread: str, screen: Screen) -> None:
    (run_id,) = screen.run_ids
    run: Any = await client.runs.get(thread, run_id)
    say(f"\n{DIM}run     {PLAIN}{run_id}, one and the same from the first token to the last: {run['status']}")
    state: Any = await client.threads.get_state(thread)
    halted = (state["values"].get("preemption") or {}).get("halt")
    if halted and halted["run_id"] == run_id:
        say(f"{DIM}halted  {PLAIN}{YELLOW}{halted['reason']}{PLAIN} (at the node {halted['node']!r})")


async def show_thread(client: LangGraphClient, thread: str) -> None:
    state: Any = await client.threads.get_state(thread)
    say(f"{DIM}thread  now holds, with nothing lost:{PLAIN}")
    for message in state["values"]["messages"]:
        text = " ".join(text_of(message).split())
        short = text if len(text) <= 72 else f"{text[:46]} … {text[-22:]}"
        mark = f"  {YELLOW}[sealed]{PLAIN}" if "preemption" in message.get("response_metadata", {}) else ""
        say(f"{DIM}        {message['type']:<6}{PLAIN}{short}{mark}")


@contextlib.asynccontextmanager
async def cancelled_by(number: signal.Signals) -> AsyncIterator[None]:
    """Lets a signal cancel this task, like Ctrl-C: what a handler raises can be lost, in `__del__` say."""
    loop, task, before = asyncio.get_running_loop(), asyncio.current_task(), signal.getsignal(number)
    assert task is not None
    loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(number)
        signal.signal(number, before)


class Screen:
    """What a person sees of one run, in the order in which it happens."""

    def __init__(self) -> None:
        self.tokens = 0
        self.run_ids: list[str] = []
        self.posted_at = 0.0
        self._speaker = ""
        self._held: list[Callable[[], None]] | None = None

    @contextlib.asynccontextmanager
    async def person(self, text: str) -> AsyncIterator[None]:
        """Shows a line as it is typed; what streams meanwhile, and in the block, is shown after it."""
        self._held = []
        self._turn(f"{GREEN}you     ")
        for character in text:
            print(character, end="", flush=True)
            await asyncio.sleep(0.004 if FANCY else 0)
        self.line_end()
        yield
        held, self._held = self._held, None
        for show in held:
            show()

    def token(self, message: dict[str, Any]) -> None:
        text = text_of(message)
        if text and message["type"] in ("AIMessageChunk", "ai"):
            self.tokens += 1
            self._show(lambda: self._print(text))

    def preemption(self, event: Any) -> None:
        if not isinstance(event, dict) or event.get("type") != "preemption":
            return
        name = event["event"]
        if name == "sealed":
            ms = (time.perf_counter() - self.posted_at) * 1000
            text = f"sealed: the half answer is a turn of its own now ({ms:.0f} ms after the request)"
        elif name == "injected":
            text = "injected: your message is in the conversation, and the same run goes on"
        else:
            text = f"{name}: {event['reason']}" if event.get("reason") else name
        self._show(lambda: self.note(text))

    def _show(self, act: Callable[[], None]) -> None:
        if self._held is None:
            act()
        else:
            self._held.append(act)

    def note(self, text: str) -> None:
        self._turn(f"{YELLOW}        · ")
        print(text, end="")
        self.line_end()

    def line_end(self) -> None:
        if self._speaker:
            print(PLAIN, flush=True)
        self._speaker = ""

    def _print(self, text: str) -> None:
        if self._speaker != "agent":
            self._turn(f"{DIM}agent   {PLAIN}")
            self._speaker = "agent"
            text = text.lstrip()
        print(text.replace("\n", "\n        "), end="", flush=True)

    def _turn(self, label: str) -> None:
        self.line_end()
        print(label, end="", flush=True)
        self._speaker = label


@contextlib.contextmanager
def server() -> Iterator[str]:
    """`langgraph dev` with this checkout's `langgraph.json`, until the block ends."""
    model = os.environ.get("MIDSTREAM_MODEL") or "local"
    say(f"{DIM}Starting `langgraph dev` with MIDSTREAM_MODEL={model} …{PLAIN}", end=" ")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "langgraph_cli",
        "dev",
        "--no-browser",
        "--no-reload",
        "--port",
        str(port),
    ]
    environment = {**os.environ, "LANGSMITH_TRACING": os.environ.get("LANGSMITH_TRACING", "false")}

    with tempfile.TemporaryFile() as log:
        # In a session of its own, so that Ctrl-C reaches this process first, and this one ends that one.
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            started = time.monotonic()
            while not answers(url):
                if process.poll() is not None or time.monotonic() - started > STARTS_WITHIN_SECONDS:
                    log.seek(0)
                    tail = log.read().decode(errors="replace").splitlines()[-30:]
                    raise SystemExit("\n".join(["it did not start. Its log ends:", *tail]))
                time.sleep(0.1)
            say(f"{DIM}ready after {time.monotonic() - started:.1f} s at {url}{PLAIN}")
            yield url
        finally:
            end(process)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ok", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def end(process: subprocess.Popen[bytes]) -> None:
    for number, seconds in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return


def text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content if isinstance(block, dict))


def say(text: str, *, end: str = "\n") -> None:
    print(text, end=end, flush=True)


if __name__ == "__main__":
    # A polite kill ends what was started as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
