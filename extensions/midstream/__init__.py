"""Steer, halt and gate agents that run on the LangGraph server."""

from midstream.errors import ConfigurationError, LedgerFullError, MidstreamError
from midstream.state import MidstreamState

__all__ = ["ConfigurationError", "LedgerFullError", "MidstreamError", "MidstreamState"]
