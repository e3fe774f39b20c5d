"""Redirecting an answer on the real server: a steer, and the ways that the server has without midstream.

An answer streams on `langgraph dev`; after some tokens the person says something else, and the answer to that
is waited for. A steer goes into the same run. The others begin a new run, and the plain graph is theirs:
`multitask_strategy` `interrupt`, `rollback` and `enqueue` (waiting), and a cancel followed by a new run. All
are taken in turns, on the scripted model at 20 ms a token and on the local real model.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

from langgraph_sdk.client import LangGraphClient

from bench.measure import median, quantile
from bench.report import Table, arguments, publish
from bench.servers import WITH, WITHOUT, saying, scripted, server, streamed
from bench.svg import Bar, bars
from midstream_client import Midstream

STEER, INTERRUPT, ROLLBACK = "steer (midstream)", "interrupt", "rollback"
CANCEL, WAIT = "cancel, then a new run", "enqueue (waiting)"
WAYS = (STEER, INTERRUPT, ROLLBACK, CANCEL, WAIT)
STRATEGY = {INTERRUPT: "interrupt", ROLLBACK: "rollback", WAIT: "enqueue"}

TRY_SECONDS = 120

COLUMNS = (
    *("model", "way", "first token ms", "p90"),
    *("unwanted tokens", "lost tokens", "lost chars", "runs", "prompt tokens"),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """A model, and what is said to it."""

    name: str
    env: dict[str, str]
    question: str
    redirection: str
    after: int
    """How many tokens the person reads first."""

    rounds: int


@dataclass(frozen=True, slots=True)
class Result:
    """What a redirection cost."""

    first_token_s: float
    """From the person's word to the first token of the answer to it."""

    unwanted_tokens: int
    """Tokens of the first answer that came after the person's word."""

    lost_tokens: int
    """Tokens of the first answer that the person saw and the thread does not have."""

    lost_chars: int
    """Of all that was said before the redirection, the person's words included."""

    runs: int
    prompt_tokens: int
    """What the model was sent again to answer the redirection, as it counts."""


class Answer:
    """What reaches the screen."""

    def __init__(self) -> None:
        self.first: list[str] = []
        self.first_id = ""
        self.run_id = ""
        self.asked_at = 0.0
        self.redirected_at = 0.0
        self.unwanted = 0

    def take(self, message_id: str, text: str) -> None:
        if not self.first_id:
            self.first_id = message_id
        if message_id == self.first_id:
            self.first.append(text)
            self.unwanted += self.asked_at > 0
        elif not self.redirected_at:
            self.redirected_at = time.perf_counter()


async def once(client: LangGraphClient, way: str, setting: Setting) -> Result:
    thread_id = (await client.threads.create())["thread_id"]
    answer, enough = Answer(), asyncio.Event()
    graph = WITH if way == STEER else WITHOUT

    async def read(stream: AsyncIterator[tuple[str, Any]]) -> None:
        async for kind, data in stream:
            if kind == "run" and not answer.run_id:
                answer.run_id = data
            elif kind == "token":
                answer.take(*data)
                if len(answer.first) >= setting.after:
                    enough.set()

    first = asyncio.create_task(read(streamed(client, thread_id, graph, setting.question)))
    await asyncio.wait([first, asyncio.ensure_future(enough.wait())], return_when=asyncio.FIRST_COMPLETED)
    assert not first.done(), "the answer was shorter than what the person wanted to read"

    answer.asked_at = time.perf_counter()
    if way == STEER:
        await Midstream(client).steer(thread_id, setting.redirection)
        await first
    else:
        options = {}
        if way == CANCEL:
            await client.runs.cancel(thread_id, answer.run_id, wait=True)
        else:
            options["multitask_strategy"] = STRATEGY[way]
        async with aclosing(streamed(client, thread_id, graph, setting.redirection, **options)) as second:  # type: ignore[type-var]
            await read(second)
        # The stream of a run that was interrupted may end with an error, which is what was wanted.
        await asyncio.gather(first, return_exceptions=True)
    return await result(client, thread_id, answer, setting)


async def result(client: LangGraphClient, thread_id: str, answer: Answer, setting: Setting) -> Result:
    state: Any = (await client.threads.get_state(thread_id))["values"]
    messages = state["messages"]
    kept = next((_text(each) for each in messages if each["id"] == answer.first_id), "")
    seen = "".join(answer.first)
    lost = 0 if kept.startswith(seen) else len(seen)
    asked = any(_text(each) == setting.question for each in messages)
    assert any(_text(each) == setting.redirection for each in messages)
    assert messages[-1]["type"] == "ai"
    return Result(
        first_token_s=answer.redirected_at - answer.asked_at,
        unwanted_tokens=answer.unwanted,
        lost_tokens=len(answer.first) if lost else 0,
        lost_chars=lost + (0 if asked else len(setting.question)),
        runs=len(await client.runs.list(thread_id)),
        prompt_tokens=(messages[-1].get("usage_metadata") or {}).get("input_tokens", 0),
    )


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(each.get("text", "") for each in content)


async def compared(setting: Setting, seed: int) -> dict[str, list[Result]]:
    order = random.Random(seed)
    found: dict[str, list[Result]] = {way: [] for way in WAYS}
    with server(env=setting.env) as running:
        async with running.client() as client:
            for turn in range(setting.rounds + 1):
                for way in order.sample(WAYS, len(WAYS)):
                    async with asyncio.timeout(TRY_SECONDS):
                        measured = await once(client, way, setting)
                    if turn:
                        found[way].append(measured)
    return found


def row(setting: str, way: str, results: Sequence[Result]) -> list[str]:
    first = [each.first_token_s * 1e3 for each in results]

    def typical(name: str) -> str:
        return f"{median([float(getattr(each, name)) for each in results]):.0f}"

    names = ("unwanted_tokens", "lost_tokens", "lost_chars", "runs", "prompt_tokens")
    return [
        setting,
        way,
        f"{median(first):.0f}",
        f"{quantile(first, 0.9):.0f}",
        *(typical(name) for name in names),
    ]


def settings(rounds: int, real_rounds: int) -> list[Setting]:
    from chat_models.local import started

    local = {"MIDSTREAM_MODEL": "local", "MIDSTREAM_LOCAL_URL": started()}
    return [
        Setting(
            "scripted, 20 ms a token",
            scripted(20),
            saying("Once upon a time", 150),
            saying("A cat it is.", 5),
            25,
            rounds,
        ),
        Setting(
            "SmolLM2-135M through llama.cpp",
            local,
            "Write a long story about a lighthouse keeper named Jameson.",
            "Stop the story. Say in one short sentence what a cat is.",
            25,
            real_rounds,
        ),
    ]


def picture(found: Mapping[str, Mapping[str, Sequence[Result]]]) -> str:
    def bar(way: str, results: Sequence[Result]) -> Bar:
        first = [each.first_token_s * 1e3 for each in results]
        lost = median([float(each.lost_tokens) for each in results])
        text = f"{median(first):,.0f} ms, " + (f"{lost:.0f} tokens lost" if lost else "nothing lost")
        return Bar(way, median(first), min(first), max(first), is_base=way != STEER, text=text)

    return bars(
        "Redirecting an answer on the real server",
        "ms from the person's word to the first token of its answer, median; whisker: all tries",
        [(name, [bar(*each) for each in ways.items()]) for name, ways in found.items()],
    )


async def main() -> None:
    options = arguments(__doc__, rounds=15)
    found = {
        setting.name: await compared(setting, options.seed)
        for setting in settings(options.rounds, max(1, options.rounds // 2))
    }
    table = Table(
        "Redirecting an answer after 25 tokens; medians",
        COLUMNS,
        [row(name, way, results) for name, ways in found.items() for way, results in ways.items()],
    )
    publish(
        "redirect",
        [table],
        options={"rounds": options.rounds, "seed": options.seed, "tokens_before": 25},
        samples={
            name: {way: [asdict(each) for each in results] for way, results in ways.items()}
            for name, ways in found.items()
        },
        picture=picture(found),
    )


if __name__ == "__main__":
    asyncio.run(main())
