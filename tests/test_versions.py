from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from midstream import ConfigurationError, _host
from midstream._versions import FLOORS, SERVER, check_host_versions, unknown_server

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("old", ["1.2.19", "1.2.20rc1", "1.2.20.dev3", "1.2", "1.1.99", "0.6.10"])
def test_a_langgraph_below_the_floor_is_refused_with_the_reason_and_the_way_out(old: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_host_versions({"langgraph": old, "langgraph-prebuilt": "1.1.3"})
    assert str(refused.value) == (
        f"midstream needs langgraph 1.2.20 or newer, and {old} is installed: an interrupt that is asked "
        "after an answered one had the same id before, so that an answer could be taken for that of another "
        "question. Install a newer one: pip install --upgrade 'langgraph>=1.2.20'"
    )


@pytest.mark.parametrize(
    "new", ["1.2.20", "1.2.20.post1", "1.2.20+local", "1.2.100", "1.3.0a1", "1.10.0", "2"]
)
def test_a_langgraph_from_the_floor_on_is_taken(new: str) -> None:
    check_host_versions({"langgraph": new, "langgraph-prebuilt": "1.1.3"})


def test_a_langgraph_prebuilt_below_its_floor_is_refused_too() -> None:
    with pytest.raises(
        ConfigurationError, match=r"needs langgraph-prebuilt 1\.1\.3 or newer, and 1\.1\.2 is"
    ):
        check_host_versions({"langgraph": "1.2.24", "langgraph-prebuilt": "1.1.2"})


def test_a_host_whose_version_is_not_known_is_not_judged() -> None:
    check_host_versions({})


def test_the_floors_are_those_that_the_distribution_asks_for() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {f"{name}>={floor}" for name, (floor, _) in FLOORS.items()} <= set(asked)


@pytest.mark.parametrize("tested", ["0.11.0", "0.11.1", "0.12", "0.16.7", "0.16.99"])
def test_a_server_that_was_tested_is_not_spoken_of(tested: str) -> None:
    assert unknown_server({"langgraph-api": tested}) is None


@pytest.mark.parametrize("other", ["0.10.9", "0.17.0", "0.17.0rc1", "1.0"])
def test_a_server_that_was_not_tested_is_taken_and_spoken_of(other: str) -> None:
    assert unknown_server({"langgraph-api": other}) == (
        f"midstream was tested on langgraph-api 0.11 to 0.16, and {other} is installed: requests may fail "
        "there, with an error that says so; the nodes do not depend on it"
    )


def test_nothing_is_said_where_no_server_is_installed() -> None:
    assert unknown_server({}) is None


def test_the_oldest_server_is_the_one_that_the_distribution_asks_for() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"langgraph-api>={SERVER[0]}" in asked["server"]


async def test_a_server_that_lacks_what_is_read_of_it_is_told_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "langgraph_api._checkpointer", None)
    with pytest.raises(ConfigurationError, match=r"has no langgraph_api\._checkpointer\.get_checkpointer"):
        await _host.server_saver()


@pytest.mark.parametrize("module", ["midstream.server", "midstream"])
def test_on_a_host_below_the_floor_the_import_says_why_it_refuses(module: str, tmp_path: Path) -> None:
    """A langgraph that calls itself 1.2.19 and, like a really old one, has none of the names we import."""
    info = tmp_path / "langgraph-1.2.19.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: langgraph\nVersion: 1.2.19\n")
    (tmp_path / "langgraph").mkdir()
    (tmp_path / "langgraph" / "__init__.py").touch()

    path = [
        str(tmp_path),
        str(ROOT / "extensions"),
        str(ROOT / "sdk_client"),
        os.environ.get("PYTHONPATH", ""),
    ]
    done = subprocess.run(
        [sys.executable, "-c", f"import {module}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert (
        "midstream needs langgraph 1.2.20 or newer, and 1.2.19 is installed" in done.stderr.splitlines()[-1]
    )
