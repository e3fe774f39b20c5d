"""The host's side of midstream: steer, halt and withdraw over a stock `langgraph-sdk` client."""

from midstream_client.client import Midstream
from midstream_client.errors import MidstreamError, NotInstalledError
from midstream_client.protocol import (
    HaltRequest,
    Receipt,
    SteerRequest,
    UserMessage,
    WithdrawRequest,
)

__all__ = [
    "HaltRequest",
    "Midstream",
    "MidstreamError",
    "NotInstalledError",
    "Receipt",
    "SteerRequest",
    "UserMessage",
    "WithdrawRequest",
]
