"""Which hosts midstream works on, told before anything is imported from them.

An older host lacks names that the other modules import, and would be reported as an `ImportError` of a name
that says nothing to anybody. What is known to go wrong is refused; what nobody has tried yet is only said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from midstream.errors import ConfigurationError

FLOORS = {
    "langgraph": (
        "1.2.20",
        "an interrupt that is asked after an answered one had the same id before, so that an answer could be "
        "taken for that of another question",
    ),
    "langgraph-prebuilt": (
        "1.1.3",
        "an interrupt inside the wrapper of a tool call became an error message for the model before",
    ),
}
"""The oldest version, and what was wrong before it; the same floors as in `pyproject.toml`."""

SERVER = ("0.11", "0.16")
"""The oldest and the newest line of langgraph-api that midstream's tests ran on."""

_PARTS = re.compile(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?(?P<early>\.?(?:a|b|c|rc|dev|alpha|beta|pre)\d*)?")


def check_host_versions(installed: Mapping[str, str] | None = None) -> None:
    """Makes sure that the host is new enough.

    Args:
        installed: Versions by distribution, where not those of this environment are meant. A distribution
            that is not there is not judged.

    Raises:
        ConfigurationError: One is too old.
    """
    versions = _installed() if installed is None else installed
    for name, (floor, reason) in FLOORS.items():
        found = versions.get(name)
        if found is not None and _key(found) < _key(floor):
            raise ConfigurationError(
                f"midstream needs {name} {floor} or newer, and {found} is installed: {reason}. "
                f"Install a newer one: pip install --upgrade '{name}>={floor}'"
            )


def unknown_server(installed: Mapping[str, str] | None = None) -> str | None:
    """Returns what to say about a langgraph-api that midstream was not tested on; None if it was, or is away.

    Args:
        installed: As for `check_host_versions`.
    """
    versions = _installed() if installed is None else installed
    found = versions.get("langgraph-api")
    oldest, newest = SERVER
    if found is None or _key(oldest)[:2] <= _key(found)[:2] <= _key(newest)[:2]:
        return None
    return (
        f"midstream was tested on langgraph-api {oldest} to {newest}, and {found} is installed: requests "
        "may fail there, with an error that says so; the nodes do not depend on it"
    )


def lacks(name: str, missing: str) -> ConfigurationError:
    """Returns the error for a host that lacks a private name, which a release may take away at any time."""
    read = {"langgraph": "1.2.24", "langgraph-api": " to ".join(SERVER)}[name]
    return ConfigurationError(
        f"{name} {_installed().get(name, 'of unknown version')} has no {missing}, which midstream was written "
        f"for {name} {read} to use: install one of these, or a newer langgraph-midstream"
    )


def _installed() -> dict[str, str]:
    found = {}
    for name in (*FLOORS, "langgraph-api"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # put there in another way, such as a checkout on the path
            continue
    return found


def _key(number: str) -> tuple[int, int, int, bool]:
    """Sorts versions as far as a floor needs it: a release comes after its own previews."""
    found = _PARTS.match(number)
    if found is None:
        return (0, 0, 0, False)
    major, minor, patch = (int(part or 0) for part in found.groups()[:3])
    return (major, minor, patch, found["early"] is None)
