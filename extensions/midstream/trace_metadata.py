"""The metadata of the LangSmith run that a node works for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tracers import LangChainTracer

logger = logging.getLogger("midstream")


def add_to_trace(config: RunnableConfig, metadata: Mapping[str, Any]) -> None:
    """Adds to the metadata of the whole run, which is sent when that ends; nothing if it is not traced."""
    callbacks: Any = config.get("callbacks")
    name = getattr(callbacks, "parent_run_id", None)
    for handler in getattr(callbacks, "handlers", ()):
        if not isinstance(handler, LangChainTracer):
            continue
        try:
            run = handler.run_map.get(str(name))
            while run is not None and (above := handler.run_map.get(str(run.parent_run_id))) is not None:
                run = above
            if run is not None:
                # A new dict: runs share the one that they were started with.
                run.extra = {**run.extra, "metadata": {**run.metadata, **metadata}}
        except Exception:
            logger.warning("the metadata of a traced run could not be added", exc_info=True)
