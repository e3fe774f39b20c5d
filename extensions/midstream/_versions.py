"""Which hosts midstream works on, told before anything is imported from them.

An older host lacks names that the other modules import, and would be reported as an `ImportError` of a name
that says nothing to anybody. What is known to go wrong is refused; what nobody has tried yet is only said.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

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
        if found is not None and Version(found) < Version(floor):
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
    if (
        found is None
        or Version(oldest).release[:2] <= Version(found).release[:2] <= Version(newest).release[:2]
    ):
        return None
    return (
        f"midstream was tested on langgraph-api {oldest} to {newest}, and {found} is installed: requests "
        "may fail there, with an error that says so; the nodes do not depend on it"
    )


def lacks(name: str, missing: str) -> ConfigurationError:
    """Returns the error for a host that lacks a private name, which a release may take away at any time."""
    read = {"langgraph": "1.2.24", "langgraph-api": " to ".join(SERVER)}[name]
    return ConfigurationError(
        f"{name} {_installed().get(name, 'of unknown version')} has no {missing}, which midstream reads; it "
        f"was written for {name} {read}: install one of these, or a newer langgraph-midstream"
    )


def _installed() -> dict[str, str]:
    found = {}
    for name in (*FLOORS, "langgraph-api"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # put there in another way, such as a checkout on the path
            continue
    return found


def _line(number: str) -> tuple[int, ...]:
    return Version(number).release[:2]
