"""Steer, halt and withdraw over a stock `langgraph-sdk` client."""

from __future__ import annotations

from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import ConflictError

from midstream_client import _calls
from midstream_client._calls import Messages
from midstream_client.errors import NotInstalledError
from midstream_client.protocol import Receipt, Request, WithdrawRequest


class Midstream:
    """The host's side of midstream.

    Args:
        client: A client of the SDK, as `langgraph_sdk.get_client` returns it; it stays the host's own.

    A request has an id. Whoever does not know whether a request arrived sends it again with the same `id`:
    the server takes each id once.
    """

    def __init__(self, client: LangGraphClient) -> None:
        self._client = client

    async def steer(
        self,
        thread_id: str,
        messages: Messages,
        *,
        run_id: str | None = None,
        node: str | None = None,
        id: str | None = None,  # noqa: A002 -- the wire's own word
    ) -> Receipt:
        """Puts a text, or messages, into the thread's conversation at the next safe point.

        Args:
            thread_id: The thread to steer.
            messages: One text, or messages `{"role": "user", "content": …}`, injected in their order.
            run_id: Only this run, or one that resumes its turn; in any other the request expires.
            node: Only the model node of this name.
            id: The request's id, a UUID; one is made if it is not given.

        Raises:
            pydantic.ValidationError: The request is not of the wire's shape; nothing was sent.
            NotInstalledError: The server does not run midstream.
        """
        request = _calls.steer(messages, run_id=run_id, node=node, request_id=id)
        return await self._post(thread_id, request)

    async def halt(
        self,
        thread_id: str,
        reason: str,
        *,
        run_id: str | None = None,
        node: str | None = None,
        id: str | None = None,  # noqa: A002 -- the wire's own word
    ) -> Receipt:
        """Ends the thread's run at the next safe point and keeps what was written.

        Args:
            thread_id: The thread to halt.
            reason: Why, in the host's own words; it becomes the run's halt reason.
            run_id: Only this run, or one that resumes its turn; in any other the request expires.
            node: Only the model node of this name.
            id: The request's id, a UUID; one is made if it is not given.

        Raises:
            pydantic.ValidationError: The request is not of the wire's shape; nothing was sent.
            NotInstalledError: The server does not run midstream.
        """
        request = _calls.halt(reason, run_id=run_id, node=node, request_id=id)
        return await self._post(thread_id, request)

    async def withdraw(self, thread_id: str, request_id: str) -> Receipt:
        """Takes back a request that was not applied yet.

        Raises:
            langgraph_sdk.errors.NotFoundError: The thread knows no such request.
            langgraph_sdk.errors.ConflictError: The request has ended already; the message says how.
            NotInstalledError: The server does not run midstream.
        """
        return await self._post(thread_id, _calls.withdraw(request_id))

    async def _post(self, thread_id: str, request: Request) -> Receipt:
        try:
            answer = await self._client.threads.update_state(thread_id, _calls.update(request))
        except ConflictError as error:
            # A stock server says this of any update while the thread is busy; midstream only of a withdraw.
            if isinstance(request, WithdrawRequest):
                raise
            raise NotInstalledError(thread_id) from error
        return _calls.receipt(thread_id, answer)
