"""A host in a process of its own, which posts requests to a thread over a shared PostgreSQL."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.postgres import PostgresSaver

from midstream import Ledger
from support.forking import START


def post(uri: str, thread_id: str, requests: list[dict[str, Any]]) -> None:
    with PostgresSaver.from_conn_string(uri) as saver:
        ledger = Ledger(saver, thread_id)
        START.wait()
        for request in requests:
            ledger.append(request)
