"""What becomes of requests when processes die, race and overtake each other."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver

from midstream import Ledger, LedgerFullError
from midstream.ledger import HaltRecord
from support.ledgers import marked, steer, texts, withdraw


class Dying(InMemorySaver):
    """A saver whose process dies at one of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls_left = -1

    def _live(self) -> None:
        if self.calls_left == 0:
            raise ConnectionError("the process is gone")
        self.calls_left -= 1

    def get_tuple(self, config: Any) -> Any:
        self._live()
        return super().get_tuple(config)

    def put(self, *args: Any) -> Any:
        self._live()
        return super().put(*args)

    def put_writes(self, *args: Any) -> None:
        self._live()
        super().put_writes(*args)


@pytest.mark.parametrize("calls", range(8))
def test_a_rotation_that_dies_anywhere_loses_nothing(calls: int) -> None:
    saver = Dying()
    ledger = Ledger(saver, "t")
    waiting = [ledger.append(steer(f"waits {number}")) for number in range(3)]
    gone = ledger.append(steer("withdrawn"))
    ledger.append(withdraw(gone))
    halted = HaltRecord(run_id="r1", reason="enough", node="model", at=2.0)
    ledger.record_halt(halted)
    settled = [ledger.append(steer(f"settled {number}")) for number in range(20)]
    for entry in ledger.view().pending()[3:]:
        ledger.mark(marked(entry))
    before = ledger.view()

    saver.calls_left = calls
    try:
        ledger.rotate(before)
    except ConnectionError:
        pass
    else:
        assert calls >= 6
    saver.calls_left = -1

    def check() -> None:
        view = ledger.view()
        assert [entry.id for entry in view.pending()] == waiting
        assert view.marks.keys() >= set(settled)
        assert view.halts == (halted,)
        assert gone in view.withdrawn or view.marks[gone]["outcome"] == "withdrawn"

    check()
    late = ledger.append(steer("late"))
    waiting.append(late)
    check()
    ledger.rotate(ledger.view())
    check()
    assert (ledger.view().root, ledger.view().carried, ledger.view().size) == (2, True, 5)


class Interleaving(InMemorySaver):
    """A saver that lets somebody else act right before one of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.at: dict[int, Callable[[], object]] = {}

    def _yield(self) -> None:
        act = self.at.pop(self.calls, None)
        self.calls += 1
        if act:
            act()

    def get_tuple(self, config: Any) -> Any:
        self._yield()
        return super().get_tuple(config)

    def put(self, *args: Any) -> Any:
        self._yield()
        return super().put(*args)

    def put_writes(self, *args: Any) -> None:
        self._yield()
        super().put_writes(*args)


@pytest.mark.parametrize("point", range(8))
@pytest.mark.parametrize("other", ["append", "withdraw", "mark", "halt", "rotate"])
def test_whoever_acts_in_the_middle_of_a_rotation_is_not_lost(point: int, other: str) -> None:
    saver = Interleaving()
    ledger = Ledger(saver, "t")
    first = ledger.append(steer("first"))
    second = ledger.append(steer("second"))
    for number in range(20):
        ledger.append(steer(f"settled {number}"))
        ledger.mark(marked(ledger.view().pending()[-1]))
    view = ledger.view()

    late = str(uuid.uuid4())
    record = HaltRecord(run_id="r1", reason="enough", node="model", at=2.0)
    acts: dict[str, Callable[[], object]] = {
        "append": lambda: ledger.append(steer("late", id=late)),
        "withdraw": lambda: ledger.append(withdraw(second)),
        "mark": lambda: ledger.mark(marked(view.pending()[1])),
        "halt": lambda: ledger.record_halt(record),
        "rotate": lambda: ledger.rotate(view),
    }
    saver.at[saver.calls + point] = acts[other]
    ledger.rotate(view)
    for act in list(saver.at.values()):
        act()

    expected = {
        "append": [first, second, late],
        "withdraw": [first],
        "mark": [first],
    }.get(other, [first, second])
    assert [entry.id for entry in ledger.view().pending()] == expected
    assert ledger.view().halts == ((record,) if other == "halt" else ())
    assert ledger.view().root == 2


@pytest.mark.parametrize("point", range(4))
def test_a_writer_whose_root_is_replaced_writes_again(point: int) -> None:
    saver = Interleaving()
    ledger = Ledger(saver, "t")
    first = ledger.append(steer("first"))
    for number in range(20):
        ledger.append(steer(f"settled {number}"))
        ledger.mark(marked(ledger.view().pending()[-1]))
    saver.at[saver.calls + point] = lambda: ledger.rotate(ledger.view())

    late = ledger.append(steer("late"))
    for act in list(saver.at.values()):
        act()

    entries = ledger.view().pending()
    assert [entry.id for entry in entries] == [first, late]
    assert ledger.view().root == 2


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def opener(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[], BaseCheckpointSaver[Any]]]:
    """A way to a saver for each thread; the savers share one storage."""
    with ExitStack() as stack:
        match request.param:
            case "memory":
                memory = InMemorySaver()
                yield lambda: memory
            case "sqlite":
                sqlite = stack.enter_context(SqliteSaver.from_conn_string(str(tmp_path / "db")))
                yield lambda: sqlite
            case "postgres":
                uri = request.getfixturevalue("postgres_tables")
                yield lambda: stack.enter_context(PostgresSaver.from_conn_string(uri))


def test_threads_that_write_while_another_consumes_lose_nothing(
    opener: Callable[[], BaseCheckpointSaver[Any]], thread_id: str
) -> None:
    writers = [Ledger(opener(), thread_id) for _ in range(4)]
    consumer = Ledger(opener(), thread_id)
    per_writer = 25
    gate = threading.Barrier(len(writers) + 1)

    def write(number: int, ledger: Ledger) -> None:
        gate.wait(10)
        for n in range(per_writer):
            while True:
                try:
                    ledger.append(steer(f"{number}/{n}"))
                    break
                except LedgerFullError:
                    continue

    workers = [threading.Thread(target=write, args=item) for item in enumerate(writers)]
    for worker in workers:
        worker.start()
    gate.wait(10)
    taken = consume(consumer, len(writers) * per_writer)
    for worker in workers:
        worker.join(10)

    for number in range(len(writers)):
        mine = [text for text in taken if text.startswith(f"{number}/")]
        assert mine == [f"{number}/{n}" for n in range(per_writer)]


WRITER = """
import sys
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from midstream.errors import LedgerFullError
from midstream.ledger import Ledger

thread_id, name, count, postgres, sqlite = sys.argv[1:]
for saver_type, uri in (PostgresSaver, postgres), (SqliteSaver, sqlite):
    with saver_type.from_conn_string(uri) as saver:
        ledger = Ledger(saver, thread_id)
        print("ready", flush=True)
        sys.stdin.readline()
        for n in range(int(count)):
            while True:
                try:
                    ledger.append({"kind": "steer", "messages": f"{name}/{n}"})
                    break
                except LedgerFullError:
                    continue
"""


def test_processes_that_write_while_another_consumes_lose_nothing(
    postgres_tables: str, tmp_path: Path, thread_id: str
) -> None:
    stores: list[tuple[Any, str]] = [(PostgresSaver, postgres_tables), (SqliteSaver, str(tmp_path / "db"))]
    uris = [uri for _, uri in stores]
    with SqliteSaver.from_conn_string(uris[1]) as saver:
        saver.setup()  # five that do so at once may find the new file locked
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, thread_id, name, "15", *uris],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "abcd"
    ]
    try:
        for saver_type, uri in stores:
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            with saver_type.from_conn_string(uri) as saver:
                taken = consume(Ledger(saver, thread_id), 60)
            for name in "abcd":
                assert [t for t in taken if t.startswith(name)] == [f"{name}/{n}" for n in range(15)]
        assert [process.wait(20) for process in processes] == [0] * 4
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def consume(ledger: Ledger, count: int) -> list[Any]:
    """Takes `count` requests as model nodes do, each once, and returns their texts as they came."""
    taken: list[Any] = []
    handled: set[str] = set()
    deadline = time.monotonic() + 30
    while len(taken) < count:
        assert time.monotonic() < deadline, f"only {len(taken)} came"
        new = ledger.view().pending(handled)
        taken += texts(new)
        handled |= {entry.id for entry in new}
        ledger.mark(marked(*new))
        ledger.rotate(ledger.view())
    assert len(taken) == count
    assert ledger.requests() == []
    assert ledger.view().root > 1
    return taken
