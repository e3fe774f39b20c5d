"""A terminal for a program: keys go in, and the screen that a person would see comes out."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Self

import pyte

SHOWS_WITHIN_SECONDS = 30.0


class Terminal:
    """A program on a pseudo terminal of this size.

    Args:
        command: The program and its arguments.
        env: Its whole environment.
    """

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], columns: int = 78, rows: int = 24
    ) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._bytes = pyte.ByteStream(self._screen)
        self._here, there = pty.openpty()
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._process = subprocess.Popen(
            command,
            stdin=there,
            stdout=there,
            stderr=there,
            env={**env, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"},
            start_new_session=True,
        )
        os.close(there)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(5)
        os.close(self._here)

    def press(self, keys: str) -> None:
        os.write(self._here, keys.encode())

    def type(self, line: str) -> None:
        """Types a line, and Enter."""
        self.press(f"{line}\r")

    def lines(self) -> list[str]:
        """Returns the screen, without the white space at its ends."""
        return [line.rstrip() for line in self._screen.display]

    def text(self) -> str:
        return "\n".join(self.lines())

    def wait_for(self, text: str) -> None:
        """Waits until the screen shows this text."""
        self.wait_for_any(text)

    def wait_for_any(self, *texts: str) -> None:
        """Waits until the screen shows one of these texts."""
        deadline = time.monotonic() + SHOWS_WITHIN_SECONDS
        while not any(text in self.text() for text in texts):
            left = deadline - time.monotonic()
            assert left > 0, f"the screen does not show {' or '.join(map(repr, texts))}:\n{self.text()}"
            self._read(left)

    def wait_for_end(self) -> int:
        """Waits until the program has ended; returns its exit code."""
        deadline = time.monotonic() + SHOWS_WITHIN_SECONDS
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"the program did not end:\n{self.text()}"
            self._read(0.05)
        while self._read(0.0):
            pass
        return int(self._process.returncode)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._here], [], [], seconds)
        if not ready:
            return False
        try:
            data = os.read(self._here, 65536)
        except OSError:
            # The program has closed its end.
            return False
        self._bytes.feed(data)
        return bool(data)
