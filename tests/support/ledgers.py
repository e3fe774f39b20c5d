"""Requests in the wire's shape, and what a consumer makes of them."""

from __future__ import annotations

from typing import Any

from midstream.ledger import Entry, Mark


def steer(text: str, **more: Any) -> dict[str, Any]:
    return {"kind": "steer", "messages": text, **more}


def halt(reason: str) -> dict[str, Any]:
    return {"kind": "halt", "reason": reason}


def withdraw(request_id: str) -> dict[str, Any]:
    return {"kind": "withdraw", "id": request_id}


def marked(*entries: Entry, outcome: str = "sealed") -> dict[str, Mark]:
    return {
        entry.id: Mark(
            outcome=outcome, run_id="run", node="model", message_ids=[], accepted_at=entry.accepted_at
        )
        for entry in entries
    }


def texts(entries: list[Entry]) -> list[Any]:
    return [entry.messages[0]["content"] if entry.messages else entry.reason for entry in entries]
