"""The host's side of midstream: steer, halt and answer threads over a stock `langgraph-sdk` client."""

from midstream_client.answers import (
    Answer,
    Decision,
    approve,
    edit,
    reject,
    respond,
    tool_result,
)
from midstream_client.client import Midstream
from midstream_client.errors import (
    AnswerProblem,
    InvalidAnswerError,
    InvalidRequestError,
    MidstreamError,
    NotInstalledError,
    NotSettledError,
    RequestRefusedError,
    ThreadPausedError,
    UnknownInterruptError,
)
from midstream_client.interrupts import AnswerError, PendingAction, PendingInterrupt, Resumed
from midstream_client.protocol import HaltRequest, SteerRequest, UserMessage, WithdrawRequest
from midstream_client.requests import Messages, PendingRequest, Receipt, RequestOutcome, Sent, Stats
from midstream_client.sync_client import SyncMidstream

__all__ = [
    "Answer",
    "AnswerError",
    "AnswerProblem",
    "Decision",
    "HaltRequest",
    "InvalidAnswerError",
    "InvalidRequestError",
    "Messages",
    "Midstream",
    "MidstreamError",
    "NotInstalledError",
    "NotSettledError",
    "PendingAction",
    "PendingInterrupt",
    "PendingRequest",
    "Receipt",
    "RequestOutcome",
    "RequestRefusedError",
    "Resumed",
    "Sent",
    "Stats",
    "SteerRequest",
    "SyncMidstream",
    "ThreadPausedError",
    "UnknownInterruptError",
    "UserMessage",
    "WithdrawRequest",
    "approve",
    "edit",
    "reject",
    "respond",
    "tool_result",
]
