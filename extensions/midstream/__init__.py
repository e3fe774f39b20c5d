"""Steer, halt and gate agents that run on the LangGraph server."""

from midstream.errors import ConfigurationError, LedgerFullError, MidstreamError, NotPendingError
from midstream.ledger import Ledger
from midstream.state import MidstreamState

__all__ = [
    "ConfigurationError",
    "Ledger",
    "LedgerFullError",
    "MidstreamError",
    "MidstreamState",
    "NotPendingError",
]
