"""The graph's side of preemption: the channel `preemption` and how two writes to it become one.

Parallel agents write the channel in the same step, and a subgraph hands its whole value back to its
parent as if it were an update. So a value and an update are the same shape, and `merge` is true to one
sentence: **merging is idempotent, and the order of two writers of one turn does not matter.** Counters are
therefore sets of ids (the sealed messages of the turn), folded into numbers when the next turn begins.
One thing is told by order on purpose: of two agents that halt one run, the first word stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, cast

from langchain_core.messages import AnyMessage
from langgraph.errors import InvalidUpdateError
from langgraph.graph.message import add_messages

# Not from `typing`: before Python 3.12 pydantic refuses those in a state that is a model of its own.
from typing_extensions import TypedDict

from midstream.delta import MessagesDelta

MAX_RUNS = 32
"""How many runs of a turn are remembered, newest last."""

MAX_HANDLED = 256
"""How many handled requests are remembered; a thread's ledger never holds as many."""


class Halt(TypedDict):
    """Why a run stopped short."""

    run_id: str
    """The run that was halted. Where the host gave it no id, the one that midstream made up for it."""

    reason: str
    node: str


class Boundary(TypedDict):
    """Where a model node stands in its turn."""

    n: int
    """Counts the node's changes of phase, so that the newer of two values is known."""

    phase: Literal["open", "going", "over"]
    """`open`: the next entry runs a boundary. `going`: a boundary was run, the model is called next.
    `over`: the node's turn has ended."""

    kind: Literal["seal", "end", "entry"]
    message_id: str | None
    """The message that the boundary follows; None at an entry."""

    held: NotRequired[AnyMessage]
    """The answer with its tool calls, while a halt is decided that lets none of them act."""


class Handled(TypedDict):
    """How a request ended."""

    outcome: str
    run_id: str | None
    node: str
    message_ids: list[str]
    """The messages that it became; empty for a halt."""

    accepted_at: float
    """Unix time, in seconds."""


class Stats(TypedDict):
    """Counts over the whole life of the thread."""

    seals: int
    restarts: int
    empty_boundaries: int


class Turn(TypedDict):
    """An input and all the runs that resume it."""

    key: str
    """Names the input that began the turn, as the host's own checkpoints do."""

    runs: list[str]
    seals: list[str]
    """Ids of the messages that were sealed."""

    restarts: list[str]
    empty_boundaries: list[str]

    lengthened: NotRequired[list[str]]
    """The runs that took steps of midstream's own: for a seal, a restart, or what was said at a boundary."""


class PreemptionState(TypedDict, total=False):
    """The value of the channel `preemption`, and an update of it."""

    turn: Turn
    past: str
    """The key of the turn before: a subgraph may hand back what it was given before this turn began."""

    before: Stats
    """The counts of earlier turns."""

    stats: Stats
    """`before` and the counts of this turn; always worked out by `merge`."""

    boundaries: dict[str, Boundary]
    """By model node."""

    handled: dict[str, Handled]
    """By request id."""

    halt: Halt
    """The last halt; it concerns the run that it names, and no other."""


NOTHING: Stats = {"seals": 0, "restarts": 0, "empty_boundaries": 0}


def _union(left: list[str], right: list[str]) -> list[str]:
    seen = set(left)
    return left + [item for item in right if item not in seen]


def _totals(before: Stats, turn: Turn) -> Stats:
    return Stats(
        seals=before["seals"] + len(turn["seals"]),
        restarts=before["restarts"] + len(turn["restarts"]),
        empty_boundaries=before["empty_boundaries"] + len(turn["empty_boundaries"]),
    )


def merge(left: PreemptionState | None, right: PreemptionState | None) -> PreemptionState:
    """Returns the channel's value after a write; idempotent, and order-tolerant within a turn.

    Raises:
        InvalidUpdateError: The write is a request, which belongs on the ledger, or nothing of ours at all.
    """
    if right is not None and (not isinstance(right, Mapping) or "kind" in right):
        raise InvalidUpdateError(
            f"the channel 'preemption' cannot be given {right!r}: a request goes to the thread's ledger. Put "
            '"http": {"app": "midstream.server:app"} into langgraph.json, so that the server takes it there '
            "from a state update; a host in the graph's own process appends it to midstream.Ledger"
        )
    # A graph without midstream may have left something else under the name on this thread.
    left = left if isinstance(left, Mapping) else {}
    right = right or {}

    new, old = right.get("turn"), left.get("turn")
    if new is not None and new["key"] == left.get("past"):
        right = {"boundaries": right.get("boundaries", {}), "handled": right.get("handled", {})}
        new = None

    merged: PreemptionState = {**left}
    before = left.get("before", NOTHING)

    if new is not None:
        if old is None:
            merged["turn"] = new
            before = right.get("before", before)
            if "past" in right:
                merged["past"] = right["past"]
        elif old["key"] == new["key"]:
            merged["turn"] = Turn(
                key=old["key"],
                runs=_union(old["runs"], new["runs"])[-MAX_RUNS:],
                seals=_union(old["seals"], new["seals"]),
                restarts=_union(old["restarts"], new["restarts"]),
                empty_boundaries=_union(old["empty_boundaries"], new["empty_boundaries"]),
            )
            if lengthened := _union(old.get("lengthened", []), new.get("lengthened", [])):
                merged["turn"]["lengthened"] = lengthened[-MAX_RUNS:]
        else:
            before = _totals(before, old)
            merged["turn"], merged["past"] = new, old["key"]
            if (past := left.get("halt")) is not None and past["run_id"] in new["runs"]:
                del merged["halt"]  # of a run of the same id

    if "turn" in merged:
        merged["before"] = before
        merged["stats"] = _totals(before, merged["turn"])

    if boundaries := right.get("boundaries"):
        known = {**left.get("boundaries", {})}
        for node, boundary in boundaries.items():
            mine = known.get(node)
            if mine is None or boundary["n"] > mine["n"]:
                known[node] = boundary
        merged["boundaries"] = known

    if handled := right.get("handled"):
        known_ids = {**handled, **left.get("handled", {})}
        newest = sorted(known_ids.items(), key=lambda item: (item[1]["accepted_at"], item[0]))
        merged["handled"] = dict(newest[-MAX_HANDLED:])

    if (halt := right.get("halt")) is not None:
        mine_halt = left.get("halt")
        # Of two agents that halt one run, the first word stays.
        if mine_halt is None or mine_halt["run_id"] != halt["run_id"]:
            merged["halt"] = halt

    return merged


class MidstreamState(TypedDict):
    """Messages and the channel that midstream needs; extend it with channels of your own."""

    messages: Annotated[list[AnyMessage], add_messages]
    preemption: NotRequired[Annotated[PreemptionState, merge]]


class DeltaMidstreamState(TypedDict):
    """Same as `MidstreamState`, but its messages are a `DeltaChannel`: a checkpoint keeps only what is new.

    A thread of a graph with `MidstreamState` may go on with this one. The way back is closed: a channel of
    another kind cannot read what a `DeltaChannel` has stored.
    """

    messages: Annotated[list[AnyMessage], MessagesDelta()]
    preemption: NotRequired[Annotated[PreemptionState, merge]]


def has_channel(state: Any) -> bool:
    """Tells whether a state, of any kind, has the channel `preemption`."""
    return "preemption" in state if isinstance(state, dict) else hasattr(state, "preemption")


def preemption_of(state: Any) -> PreemptionState:
    """Returns the channel's value in a dict, a dataclass or a pydantic model; `{}` if it is another's."""
    value = state.get("preemption") if isinstance(state, dict) else getattr(state, "preemption", None)
    return cast("PreemptionState", value) if isinstance(value, Mapping) else {}


def halt_of(state: Any, run_id: str) -> Halt | None:
    """Returns the halt that concerns this run, or None."""
    halt = preemption_of(state).get("halt")
    return halt if halt is not None and halt["run_id"] == run_id else None
