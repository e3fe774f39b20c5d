"""How a model node may be preempted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import TIMEOUT_MAX
from typing import cast

from langchain_core.messages.utils import count_tokens_approximately

from midstream.errors import ConfigurationError
from midstream.hooks import BoundaryFunction, BoundaryHook, Moment, is_async
from midstream.usage import TokenCounter


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """The options of one model node.

    Raises:
        ConfigurationError: A value is of the wrong kind or out of range.
    """

    enabled: bool = True
    """False: the node calls its model as if midstream were not there, and leaves requests alone."""

    max_seals: int = 8
    """How many times one turn may be sealed or restarted: an input and all the runs that resume it."""

    poll_interval: float = 0.2
    """The longest time between two looks at the ledger while an answer streams, in seconds. A request that
    reaches this very process is seen at once; the interval is for those that another process took, and bounds
    how late they are seen. A quarter of it passes between two looks in the two seconds after a request or
    after a person's answer to a question of the run, then half as much again from each look to the next. Each
    look is one read of the saver: with 0.2, a stream that is long and quiet costs five reads a second."""

    token_counter: TokenCounter = count_tokens_approximately
    """Counts the tokens of messages, where an answer was ended before the provider said how many it used.
    It is called as the answer ends, so it should not wait for anything."""

    restart_grace: float | None = 2.0
    """Seconds after which an answer that has shown nothing yet (silence, white space or reasoning) is dropped
    and begun anew, to apply a request that waits. None: never."""

    boundary_hooks: Sequence[BoundaryHook | BoundaryFunction] = ()
    """Called in their order at boundaries; a bare callable is asked at seals only."""

    hook_timeout: float = 120.0
    """Seconds that one hook may take."""

    should_preempt: Callable[[], bool] | None = None
    """Polled once for each chunk: whether the answer should be sealed so that the hooks are asked. It counts
    only with a hook that is asked at seals. One that raises is logged once, and not asked
    again in that run."""

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise ConfigurationError(f"enabled must be True or False, not {self.enabled!r}")
        if isinstance(self.max_seals, bool) or not isinstance(self.max_seals, int) or self.max_seals < 0:
            raise ConfigurationError(f"max_seals must be an integer of 0 or more, not {self.max_seals!r}")
        _check_seconds("poll_interval", self.poll_interval)
        _check_seconds("hook_timeout", self.hook_timeout)
        if self.restart_grace is not None:
            _check_seconds("restart_grace", self.restart_grace, least=0)
        if self.should_preempt is not None:
            _check_plain("should_preempt", self.should_preempt)
        _check_plain("token_counter", self.token_counter)
        if isinstance(self.boundary_hooks, str) or not isinstance(self.boundary_hooks, Sequence):
            raise ConfigurationError(
                f"boundary_hooks must be a list, such as [{_name_of(self.boundary_hooks)}], "
                f"not {self.boundary_hooks!r}"
            )
        hooks = [
            hook if isinstance(hook, BoundaryHook) else BoundaryHook(hook) for hook in self.boundary_hooks
        ]
        object.__setattr__(self, "boundary_hooks", tuple(hooks))

    def hooks_at(self, moment: Moment) -> list[BoundaryHook]:
        """Returns the hooks that are asked at a boundary, in their order."""
        return [hook for hook in self.boundary_hooks if isinstance(hook, BoundaryHook) and moment in hook.at]


def _check_seconds(name: str, value: object, *, least: float | None = None) -> None:
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if fits:
        seconds = cast("float", value)
        # Nothing can wait for longer, and "not a number" is neither more nor less than anything.
        fits = (seconds > 0 if least is None else seconds >= least) and seconds <= TIMEOUT_MAX
    if not fits:
        bound = "above 0" if least is None else f"of {least} or more"
        raise ConfigurationError(f"{name} must be a finite number of seconds {bound}, not {value!r}")


def _check_plain(name: str, function: object) -> None:
    if not callable(function):
        raise ConfigurationError(f"{name} must be callable, not {function!r}")
    if is_async(function):
        raise ConfigurationError(
            f"{name} must be a plain function, because nothing waits for it: {_name_of(function)} is async"
        )


def _name_of(function: object) -> str:
    return getattr(function, "__name__", None) or "hook"
