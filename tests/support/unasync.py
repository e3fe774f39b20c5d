"""Makes `midstream_client/sync_client.py` from `client.py`: `python tests/support/unasync.py`.

The two differ by these words and no other; `test_client_surface.py` holds them to it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "sdk_client" / "midstream_client"

WORDS = (
    (
        "The host's side of midstream, awaited; `sync_client` is its twin.",
        "The host's side of midstream for code that does not await; made from `client` by "
        "tests/support/unasync.py.",
    ),
    ("import asyncio\n", ""),
    (
        """            await handle.ready
            async for event in handle.events:
                yield event
            if (error := await handle.done) is not None:
                raise error
""",
        """            yield from handle.events
""",
    ),
    ("ProtocolSseTransport", "SyncProtocolSseTransport"),
    ("ProtocolWebSocketTransport", "SyncProtocolWebSocketTransport"),
    ("websockets.asyncio.client", "websockets.sync.client"),
    ("is_awaited=True", "is_awaited=False"),
    ("async def ", "def "),
    ("await ", ""),
    ("AsyncGenerator[Event, None]", "Generator[Event, None, None]"),
    ("AsyncGenerator[Any, None]", "Generator[Any, None, None]"),
    ("AsyncGenerator, Mapping", "Generator, Mapping"),
    ("aclosing", "closing"),
    ("asyncio.sleep", "time.sleep"),
    ("anext(", "next("),
    ("aclose", "close"),
    ("class Midstream:", "class SyncMidstream:"),
    ("LangGraphClient", "SyncLangGraphClient"),
    ("get_client", "get_sync_client"),
)


def sync_source() -> str:
    """Returns the text that `sync_client.py` must have."""
    text = (FOLDER / "client.py").read_text()
    for awaited, plain in WORDS:
        assert awaited in text, f"client.py has no {awaited!r} any more"
        text = text.replace(awaited, plain)
    # What is shorter without `await` may fit on a line.
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", f"{FOLDER}/sync_client.py", "-"]
    done = subprocess.run(command, cwd=FOLDER, input=text, capture_output=True, text=True, check=True)
    return done.stdout


if __name__ == "__main__":
    (FOLDER / "sync_client.py").write_text(sync_source())
