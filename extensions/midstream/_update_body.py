"""Tells from a state update's body, while it arrives, whether it speaks of `preemption`."""

from __future__ import annotations

import re

import orjson

MAX_KEY_BYTES = 64
"""A longer key is not ours, even with every character escaped."""

MAX_DEPTH = 1024
"""What is deeper is refused by the server's JSON parser (orjson 3)."""

_STRING_REST = rb'(?:[^"\\]++|\\.)*+'
_STRING = rb'"' + _STRING_REST + rb'"'
_NESTED = rb'(?:[^"{}\[\]]++|%b)*+' % _STRING
for _ in range(4):
    _NESTED = rb'(?:[^"{}\[\]]++|%b|[{\[]%b[}\]])*+' % (_STRING, _NESTED)

_inside_string = re.compile(_STRING_REST, re.DOTALL)
_structure = re.compile(rb'["{}\[\]:]')

# The regex engine is some twenty times as fast as steps in Python, so it passes over what cannot matter:
_nested = re.compile(_NESTED, re.DOTALL)
"""Whole strings, objects and arrays (of up to four levels) below the depth of our key."""

_MEMBERS = rb'(?:[\s,]*+"(?!(?:values|%b)")[^"\\]*+"\s*+:\s*+(?:[^"{}\[\],\s]++|%b|[{\[]%b[}\]]))*+'
"""Whole members of an object that have another, plainly spelled key."""


class KeyFinder:
    """Looks for one key in the object `values` of a JSON object, chunk by chunk.

    It holds no more than one key's bytes, whatever the size of the body, and finds a key that is spelled
    with escapes too. What it says of something that is not JSON means nothing, and does not matter: the
    server refuses that.
    """

    def __init__(self, key: str) -> None:
        self.found = False
        self._key = key
        self._members = re.compile(_MEMBERS % (re.escape(key).encode(), _STRING, _NESTED), re.DOTALL)
        self._depth = 0
        self._in_values = False
        self._in_string = False
        self._in_escape = False
        self._string = bytearray()

    def feed(self, chunk: bytes) -> bool:
        """Takes the next bytes and returns whether the key was found up to here."""
        at = 0
        while at < len(chunk) and not self.found and self._depth <= MAX_DEPTH:
            at = self._pass_string(chunk, at) if self._in_string else self._pass_structure(chunk, at)
        return self.found

    def _pass_structure(self, chunk: bytes, at: int) -> int:
        skipped = (self._members if self._depth <= 2 else _nested).match(chunk, at)
        match = _structure.search(chunk, skipped.end() if skipped else at)
        if match is None:
            return len(chunk)
        mark = match[0]
        if mark == b'"':
            self._in_string = True
            self._string.clear()
        elif mark == b":":
            self._name()
        else:
            self._depth += 1 if mark in b"{[" else -1
        return match.end()

    def _pass_string(self, chunk: bytes, at: int) -> int:
        if self._in_escape:
            self._in_escape = False
            self._keep(chunk, at, at + 1)
            return at + 1
        match = _inside_string.match(chunk, at)
        end = match.end() if match else at
        self._keep(chunk, at, end + 1)
        # What ends the match is the closing quote, the chunk's end, or a backslash just before that.
        self._in_escape = chunk[end : end + 1] == b"\\"
        self._in_string = chunk[end : end + 1] != b'"'
        return end + 1

    def _keep(self, chunk: bytes, start: int, end: int) -> None:
        if self._depth <= 2 and len(self._string) <= MAX_KEY_BYTES:
            self._string += chunk[start : min(end, start + MAX_KEY_BYTES + 1)]

    def _name(self) -> None:
        if self._depth == 1:
            self._in_values = self._is("values")
        elif self._depth == 2 and self._in_values and self._is(self._key):
            self.found = True

    def _is(self, key: str) -> bool:
        try:
            return bool(orjson.loads(b'"' + self._string) == key)
        except orjson.JSONDecodeError:
            return False
