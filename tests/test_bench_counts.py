from __future__ import annotations

from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from bench.counting_graph import QUERIES, Counts, builder, counted
from midstream import Ledger


def test_queries_are_counted_where_another_process_can_read_them(tmp_path: Path) -> None:
    ours, theirs = (Counts(tmp_path / "queries") for _ in range(2))
    saver: Any = type(
        "Counted", (InMemorySaver,), {name: counted(getattr(InMemorySaver, name), ours) for name in QUERIES}
    )()
    graph = builder.compile(checkpointer=saver)

    graph.invoke({"messages": [HumanMessage("Go on.")]}, {"configurable": {"thread_id": "1"}})
    queries, to_ledger = theirs.read()
    assert queries > 0
    assert to_ledger == 0

    Ledger(saver, "1").append({"kind": "halt", "reason": "enough"})
    after, to_ledger = theirs.read()
    assert to_ledger > 0
    assert after >= queries + to_ledger
