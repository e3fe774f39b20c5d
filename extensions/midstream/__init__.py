"""Steer, halt and gate agents that run on the LangGraph server."""

from midstream import _versions

_versions.check_host_versions()

from midstream.errors import (
    ConfigurationError,
    LedgerFullError,
    MidstreamError,
    NotPendingError,
    RequestConflictError,
)
from midstream.events import PreemptionTransformer
from midstream.gate import SealGate
from midstream.hooks import BoundaryHook, BoundaryInput, BoundaryOutput
from midstream.ledger import Ledger
from midstream.model_node import ModelNode
from midstream.options import Preemption
from midstream.routing import after_turn
from midstream.seal import SealControl, sealable
from midstream.state import DeltaMidstreamState, MidstreamState
from midstream.tool_node import ToolNode

__all__ = [
    "BoundaryHook",
    "BoundaryInput",
    "BoundaryOutput",
    "ConfigurationError",
    "DeltaMidstreamState",
    "Ledger",
    "LedgerFullError",
    "MidstreamError",
    "MidstreamState",
    "ModelNode",
    "NotPendingError",
    "Preemption",
    "PreemptionTransformer",
    "RequestConflictError",
    "SealControl",
    "SealGate",
    "ToolNode",
    "after_turn",
    "sealable",
]
