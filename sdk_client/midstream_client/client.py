"""The host's side of midstream, awaited; `sync_client` is its twin.

What the methods do is in `_steering`, `_answering` and `_streaming`, once for both; here it is performed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from midstream_client import _answering, _sending, _steering, _streaming
from midstream_client._flow import (
    END,
    Call,
    Clock,
    Command,
    Emit,
    Flow,
    MultitaskStrategy,
    Next,
    Open,
    Pause,
    Step,
    StreamFlow,
    Subscribe,
    check_client,
    own_headers,
    run_options,
)
from midstream_client._patience import PatientClient, patiently
from midstream_client._rejoining import RejoiningClient
from midstream_client._streaming import Protocol
from midstream_client.answers import Answer
from midstream_client.events import Event
from midstream_client.interrupts import PendingInterrupt, Resumed
from midstream_client.requests import Messages, PendingRequest, Receipt, RequestOutcome, Sent, Stats, Uuid

if TYPE_CHECKING:
    # The client is handed in: what uses the wire alone does not load the SDK.
    from langgraph_sdk.client import LangGraphClient

T = TypeVar("T")


class Midstream:
    """Steers, halts and answers the threads of a LangGraph server.

    Args:
        client: The SDK's client, made by `langgraph_sdk.get_client`; the host configures and closes it.
    """

    def __init__(self, client: LangGraphClient) -> None:
        check_client(client, self, is_awaited=True)
        self._client = client
        self._server = _steering.Server()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._client!r}>"

    async def steer(
        self,
        thread_id: str,
        messages: Messages,
        *,
        run_id: Uuid | None = None,
        node: str | None = None,
        id: Uuid | None = None,  # noqa: A002 (the wire's own word)
    ) -> Receipt:
        """Puts a text, or messages, into the thread's conversation at the next safe point.

        The request is on the thread when this returns, whether a run is there or not. It is safe to repeat
        with the same `id`: the server takes each id once.

        Args:
            thread_id: The thread to steer.
            messages: One text, or messages `{"role": "user", "content": …}`, injected in their order.
            run_id: Only this run, or one that resumes its turn; in any other the request expires.
            node: Only the model node of this name.
            id: The request's id, a UUID; one is made if it is not given.

        Raises:
            InvalidRequestError: An argument is not what a request is made of; nothing was sent.
            RequestRefusedError: The server did not take it, and says why.
            NotInstalledError: The server does not run midstream.
        """
        return await self._run(
            _steering.steer(self._server, thread_id, messages, run_id=run_id, node=node, request_id=id)
        )

    async def halt(
        self,
        thread_id: str,
        reason: str,
        *,
        run_id: Uuid | None = None,
        node: str | None = None,
        id: Uuid | None = None,  # noqa: A002 (the wire's own word)
    ) -> Receipt:
        """Ends the thread's run at the next safe point and keeps what was written.

        Args:
            thread_id: The thread to halt.
            reason: Why, in the host's own words; it becomes the run's halt reason.
            run_id: Only this run, or one that resumes its turn; in any other the request expires.
            node: Only the model node of this name.
            id: The request's id, a UUID; one is made if it is not given.

        Raises:
            InvalidRequestError: An argument is not what a request is made of; nothing was sent.
            RequestRefusedError: The server did not take it, and says why.
            NotInstalledError: The server does not run midstream.
        """
        return await self._run(
            _steering.halt(self._server, thread_id, reason, run_id=run_id, node=node, request_id=id)
        )

    async def withdraw(self, thread_id: str, request_id: Uuid) -> Receipt:
        """Takes back a request that was not applied yet.

        Raises:
            InvalidRequestError: The id is no UUID; nothing was sent.
            RequestRefusedError: The request is unknown, or has ended; then its `outcome` says how.
            NotInstalledError: The server does not run midstream.
        """
        return await self._run(_steering.withdraw(self._server, thread_id, request_id))

    async def outcome(self, receipt: Receipt, *, timeout: float | None = None) -> RequestOutcome:
        """Waits until a request was applied, or until nothing is there that could apply it now.

        The second is `pending`: the thread waits for a person, or for its next run. A caller that is
        cancelled leaves the request as it is.

        Args:
            receipt: What `steer` or `halt` returned.
            timeout: In seconds; None waits as long as a run is there.

        Raises:
            InvalidRequestError: It is no receipt, or the timeout is no number.
            NotSettledError: The time was over first.
        """
        return await self._run(_steering.outcome(receipt, timeout=timeout))

    async def pending_requests(self, thread_id: str) -> list[PendingRequest]:
        """Returns the requests that were not applied yet, in order of acceptance."""
        return await self._run(_steering.pending_requests(thread_id))

    async def send(
        self,
        thread_id: str,
        assistant_id: str,
        text: str,
        *,
        id: Uuid | None = None,  # noqa: A002 (the wire's own word)
        timeout: float | None = None,
        config: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Sent:
        """Brings a person's text to the model, exactly once: into the answer that streams, or by a new run.

        Waits until it is known which. A caller that is cancelled does not know; it repeats the call with the
        same `id`, which delivers what was not delivered.

        Args:
            thread_id: A thread that exists.
            assistant_id: What a new run runs.
            text: The person's words.
            id: A UUID of this text; one is made if it is not given. Give one to be able to repeat the call.
            timeout: In seconds; None waits for as long as a run that may still apply the text.
            config: For a new run.
            context: For a new run.
            metadata: For a new run.

        Raises:
            InvalidRequestError: The text is blank, or the id is no UUID; nothing was sent.
            NotSettledError: The time was over while a steer waited for a safe point; it stays on the thread.
            RequestRefusedError: The server did not take the text, or the id is that of another one (409).
            NotInstalledError: The server does not run midstream.
        """
        run = run_options(config, context, metadata)
        flow = _sending.send(
            self._server, thread_id, assistant_id, text, send_id=id, run=run, timeout=timeout
        )
        return await self._run(flow)

    def stream(
        self,
        thread_id: str,
        assistant_id: str,
        *,
        input: Mapping[str, Any] | None = None,  # noqa: A002 (the SDK's own word)
        resume: Mapping[str, Answer] | None = None,
        run_id: str | None = None,
        protocol: Protocol = "runs",
        multitask_strategy: MultitaskStrategy = "reject",
        config: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Starts a run, or joins one, and yields what happens; the last event is always `Done`.

        The run goes on when the caller stops listening; close the iterator then (`contextlib.aclosing`). A
        connection that drops is made again, and nothing is shown twice.

        Args:
            thread_id: A thread that exists.
            assistant_id: What the run runs.
            input: Starts a run with this input.
            resume: Starts a run with these answers, by interrupt id, checked as `resume` checks them.
            run_id: Joins this run, from the first event that the server has kept.
            protocol: `runs`; or `threads` or `websocket`, for the newer protocol of `client.threads.stream`,
                which names no nodes, and shows midstream's events only of graphs with the
                `PreemptionTransformer`. Where it cannot do what is asked, `runs` takes its place: on a server
                without it, on a busy thread, with a `context`, or for a run that was started by `runs`.
            multitask_strategy: What the server does if a run is there: `reject` the new one, `enqueue` it,
                or `interrupt` or `rollback` the other.
            config: For a new run.
            context: For a new run.
            metadata: For a new run.

        Raises:
            InvalidRequestError: Not exactly one of `input`, `resume` and `run_id` is given, or a word is none
                of those that are allowed; nothing was sent.
            langgraph_sdk.errors.ConflictError: A run is there, and the strategy is `reject`.
            langgraph_sdk.errors.NotFoundError: There is no such thread, or no run of that id.
            ThreadPausedError: New input for a thread that waits for a person; nothing was sent.
            UnknownInterruptError: An answer names no interrupt of the thread; nothing was sent.
            InvalidAnswerError: An answer is not what its interrupt asks for; nothing was sent.
        """
        _streaming.check(protocol, input=input, resume=resume, run_id=run_id)
        run = run_options(config, context, metadata, multitask_strategy)
        flow = _streaming.stream(
            thread_id,
            assistant_id,
            protocol=protocol,
            input=input,
            resume=resume,
            run_id=run_id,
            run=run,
        )
        return self._events(flow)

    async def interrupts(self, thread_id: str) -> list[PendingInterrupt]:
        """Returns what the thread waits in, read from its state."""
        return await self._run(_answering.interrupts(thread_id))

    async def resume(
        self,
        thread_id: str,
        assistant_id: str,
        answers: Mapping[str, Answer],
        *,
        wait: bool = True,
        multitask_strategy: MultitaskStrategy = "reject",
        config: Mapping[str, Any] | None = None,
        context: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Resumed:
        """Answers interrupts by their ids, all of them or, if one answer is not valid, none.

        Args:
            thread_id: The thread that waits.
            assistant_id: What the run runs.
            answers: By interrupt id; not all need to be given. See `Answer`.
            wait: Whether to wait until the run has ended or paused again.
            multitask_strategy: What the server does if a run is there: `reject` the answers, `enqueue` them,
                or `interrupt` or `rollback` the other run.
            config: For the run.
            context: For the run.
            metadata: For the run.

        Raises:
            InvalidRequestError: The answers are no dict, or an empty one, or the strategy is none of those
                that are allowed; nothing was sent.
            UnknownInterruptError: An answer names no interrupt of the thread; nothing was sent.
            InvalidAnswerError: An answer is not what its interrupt asks for; nothing was sent.
            langgraph_sdk.errors.ConflictError: A run is there, and the strategy is `reject`.
        """
        run = run_options(config, context, metadata, multitask_strategy)
        return await self._run(_answering.resume(thread_id, assistant_id, answers, wait=wait, run=run))

    async def halt_reason(self, thread_id: str, run_id: str) -> str | None:
        """Returns why a run stopped short; None if it did not."""
        return await self._run(_steering.halt_reason(thread_id, run_id))

    async def stats(self, thread_id: str) -> Stats:
        """Returns the thread's counts, read from its state."""
        return await self._run(_steering.stats(thread_id))

    async def _run(self, flow: Flow[T]) -> T:
        try:
            step = next(flow)
            while True:
                try:
                    result = await self._perform(step)
                except Exception as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(result)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]

    async def _perform(self, step: Step) -> Any:
        match step:
            case Call(part, method, args, options):
                return await getattr(getattr(self._client, part), method)(*args, **options)
            case Pause(seconds):
                return await asyncio.sleep(seconds)
            case Clock():
                return time.monotonic()

    async def _events(self, flow: StreamFlow[None]) -> AsyncGenerator[Event, None]:
        source: Any = None
        try:
            step = next(flow)
            while True:
                result: Any = None
                failure: Exception | None = None
                if isinstance(step, Emit):
                    yield step.event
                else:
                    try:
                        if isinstance(step, Open):
                            await _close(source)
                            source = self._opened(step)
                        elif isinstance(step, Subscribe):
                            await _close(source)
                            source = self._subscribed(step)
                        elif isinstance(step, Command):
                            result = await self._command(step)
                        elif isinstance(step, Next):
                            result = await anext(source, END)
                        else:
                            result = await self._perform(step)
                    except Exception as error:
                        failure = error
                try:
                    step = flow.send(result) if failure is None else flow.throw(failure)
                except StopIteration:
                    return
        finally:
            await _close(source)

    def _opened(self, step: Open) -> Any:
        # The SDK's own, but for how it opens the stream again.
        client: Any = RejoiningClient(self._client.http.client, step.on_rejoin)
        runs = type(self._client.runs)(type(self._client.http)(client))
        return getattr(runs, step.call.method)(*step.call.args, **step.call.options)

    async def _command(self, step: Command) -> Any:
        transport = self._transport(step.thread_id, is_websocket=False)
        command = {"id": 1, "method": step.method, "params": dict(step.params)}
        return await transport.send_command(command) or {}

    async def _subscribed(self, step: Subscribe) -> AsyncGenerator[Any, None]:
        transport = self._transport(step.thread_id, is_websocket=step.is_websocket)
        handle = transport.open_event_stream({"channels": list(step.channels)})
        try:
            await handle.ready
            async for event in handle.events:
                yield event
            if (error := await handle.done) is not None:
                raise error
        finally:
            await handle.close()
            await transport.close()

    def _transport(self, thread_id: str, *, is_websocket: bool) -> Any:
        # Imported here: who has a client has them already, and who uses the wire alone does not need them.
        from langgraph_sdk.stream.transport import ProtocolSseTransport, ProtocolWebSocketTransport
        from websockets.asyncio.client import connect

        client: Any = self._client.http.client
        about: Any = {"thread_id": thread_id, "headers": own_headers(client.headers)}
        if is_websocket:
            return ProtocolWebSocketTransport(client=client, connect=patiently(connect), **about)
        return ProtocolSseTransport(client=cast("Any", PatientClient(client)), **about)


async def _close(source: Any) -> None:
    if source is not None and hasattr(source, "aclose"):
        await source.aclose()
