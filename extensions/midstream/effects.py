"""What a visit of a model node asks for, and waits for."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from midstream._ledger_view import View
from midstream._run_notes import Claim, RunNote
from midstream.hooks import BoundaryHook, BoundaryInput
from midstream.node_call import NodeCall
from midstream.state import Halt, Handled


@dataclass(frozen=True, slots=True)
class ReadLedger:
    """Asks for a `View` of the ledger."""


@dataclass(frozen=True, slots=True)
class ReadSaved:
    """Asks for what is in storage of the thread; answered by `Saved`."""

    with_branches: bool = False
    """Whether the newest checkpoints of other branches of the thread count too."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What the checkpoints of a thread say."""

    handled: Mapping[str, Handled] = field(default_factory=dict)
    """The handled requests, by id."""

    runs: Mapping[str, str] = field(default_factory=dict)
    """By run id, the name of the input that the run went on from; where the host notes such ids."""


@dataclass(frozen=True, slots=True)
class WriteMarks:
    """Asks for marks on the ledger."""

    marks: Mapping[str, Handled]


@dataclass(frozen=True, slots=True)
class Rotate:
    """Asks for a new root of the ledger."""

    view: View


@dataclass(frozen=True, slots=True)
class WriteHalt:
    """Asks for the ledger's own record of a halt."""

    halt: Halt


@dataclass(frozen=True, slots=True)
class WriteSeal:
    """Asks for the ledger's own note of a seal."""

    note: RunNote
    view: View


@dataclass(frozen=True, slots=True)
class WriteClaim:
    """Asks for the ledger's own note of what an agent has taken or ended."""

    claim: Claim
    view: View


@dataclass(frozen=True, slots=True)
class AskHook:
    """Asks a hook; answered by its `Wish`."""

    hook: BoundaryHook
    given: BoundaryInput

    may_pause: bool = True
    """Whether everything of the visit so far would be found again after a pause."""


@dataclass(frozen=True, slots=True)
class CallModel:
    """Asks for the model's answer; `call` decides over its stream."""

    call: NodeCall


@dataclass(frozen=True, slots=True)
class Apply:
    """Asks for requests that the agent is about to apply; answered by the ids of those that it has."""

    claim: Claim
    view: View


Effect: TypeAlias = (
    Apply
    | ReadLedger
    | ReadSaved
    | WriteMarks
    | Rotate
    | WriteHalt
    | WriteSeal
    | WriteClaim
    | AskHook
    | CallModel
)
T = TypeVar("T")
Flow: TypeAlias = Generator[Effect, Any, T]
