"""How a model node may be preempted."""

from __future__ import annotations

from dataclasses import dataclass

from langchain_core.messages.utils import count_tokens_approximately

from midstream.errors import ConfigurationError
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
    """How many times one turn may be sealed. A turn is a human input and all the runs that resume it."""

    poll_interval: float = 0.2
    """Seconds between two looks at the ledger while an answer streams. A request that reaches this very
    process is seen at once; the interval counts for those that another process took."""

    token_counter: TokenCounter = count_tokens_approximately
    """Counts the tokens of messages, where an answer was ended before the provider said how many it used.
    It is called as the answer ends, so it should not wait for anything."""

    def __post_init__(self) -> None:
        if isinstance(self.max_seals, bool) or not isinstance(self.max_seals, int) or self.max_seals < 0:
            raise ConfigurationError(f"max_seals must be an integer of 0 or more, not {self.max_seals!r}")
        if not isinstance(self.poll_interval, int | float) or not self.poll_interval > 0:
            raise ConfigurationError(
                f"poll_interval must be a number of seconds above 0, not {self.poll_interval!r}"
            )
        if not callable(self.token_counter):
            raise ConfigurationError(
                f"token_counter must be a callable of messages, not {self.token_counter!r}"
            )
