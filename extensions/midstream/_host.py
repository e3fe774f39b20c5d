"""The one place that names private parts of the LangGraph server."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver


async def server_saver() -> BaseCheckpointSaver[Any]:
    """Returns the saver that the server keeps its threads in."""
    # Read from langgraph-api 0.11.1 and 0.16.7, where path and meaning are the same. Imported here and not
    # above, because the server loads our app while it is itself being imported, and because its modules
    # want the server's environment, which a test of the middleware alone does not have.
    from langgraph_api._checkpointer import get_checkpointer

    saver: BaseCheckpointSaver[Any] = await get_checkpointer()
    return saver
