from __future__ import annotations


class ModelUnavailableError(RuntimeError):
    """The chosen model cannot be had here; the message says what to install or to set."""
