"""Tells from a state update's body, while it arrives, whether it speaks of `preemption`."""

from __future__ import annotations

import re

import orjson

_OUTSIDE = re.compile(rb'["{}\[\]:]')
_INSIDE = re.compile(rb'["\\]')

MAX_KEY_BYTES = 64
"""A longer key is not ours, even with every character escaped."""


class KeyFinder:
    """Looks for one key in the object `values` of a JSON object, chunk by chunk.

    It holds no more than one key's bytes, whatever the size of the body, and finds a key that is spelled
    with escapes too. What it says of something that is not JSON means nothing, and does not matter: the
    server refuses that.
    """

    def __init__(self, key: str) -> None:
        self.found = False
        self._key = key
        self._depth = 0
        self._in_values = False
        self._in_string = False
        self._in_escape = False
        self._string = bytearray()

    def feed(self, chunk: bytes) -> bool:
        """Takes the next bytes and returns whether the key was found up to here."""
        at = 0
        while at < len(chunk) and not self.found:
            at = self._string_part(chunk, at) if self._in_string else self._structure(chunk, at)
        return self.found

    def _structure(self, chunk: bytes, at: int) -> int:
        match = _OUTSIDE.search(chunk, at)
        if match is None:
            return len(chunk)
        mark = match[0]
        if mark == b'"':
            self._in_string = True
            self._string.clear()
        elif mark == b":":
            self._named()
        else:
            self._depth += 1 if mark in b"{[" else -1
        return match.end()

    def _string_part(self, chunk: bytes, at: int) -> int:
        if self._in_escape:
            self._in_escape = False
            self._keep(chunk[at : at + 1])
            return at + 1
        match = _INSIDE.search(chunk, at)
        if match is None:
            self._keep(chunk[at:])
            return len(chunk)
        self._keep(chunk[at : match.start()])
        if match[0] == b"\\":
            self._in_escape = True
            self._keep(b"\\")
        else:
            self._in_string = False
        return match.end()

    def _keep(self, part: bytes) -> None:
        if self._depth <= 2 and len(self._string) <= MAX_KEY_BYTES:
            self._string += part[: MAX_KEY_BYTES + 1]

    def _named(self) -> None:
        if self._depth == 1:
            self._in_values = self._is("values")
        elif self._depth == 2 and self._in_values and self._is(self._key):
            self.found = True

    def _is(self, key: str) -> bool:
        try:
            return bool(orjson.loads(b'"' + self._string + b'"') == key)
        except orjson.JSONDecodeError:
            return False
