from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def set_up(folder: Path, *candidates: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(ROOT / ".ci" / "set_up"), str(folder / "venv"), str(folder / "stamp"), *candidates]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def interpreter(folder: Path, name: str, *cases: str) -> str:
    """Makes a stand-in for an interpreter, which is judged by the code that it is given."""
    program = folder / name
    program.write_text("\n".join(["#!/bin/sh", 'case "$2" in', *cases, "*) exit 0;;", "esac"]))
    program.chmod(0o755)
    return str(program)


def test_a_machine_without_a_new_python_is_told_how_to_get_one(tmp_path: Path) -> None:
    old = interpreter(tmp_path, "old", "*version_info*) exit 1;;")
    done = set_up(tmp_path, "no-such-python", old)

    assert done.returncode == 1
    assert "needs Python 3.11 or newer; none of these is: no-such-python" in done.stderr
    for remedy in ("apt install", "dnf install", "brew install", "python.org", "make PYTHON="):
        assert remedy in done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_python_without_venv_is_told_what_is_missing(tmp_path: Path) -> None:
    bare = interpreter(tmp_path, "bare", "*ensurepip*) exit 1;;", '*print*) echo "3.11";;')
    done = set_up(tmp_path, bare)

    assert done.returncode == 1
    assert "cannot make virtual environments" in done.stderr
    assert "apt install python3.11-venv" in done.stderr


def test_a_download_that_fails_says_so_and_leaves_no_stamp(tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    failing = interpreter(tmp_path, "failing")
    in_venv = tmp_path / "venv" / "bin" / "python"
    in_venv.write_text('#!/bin/sh\n[ "$1" = -c ]\n')  # every `-m pip` fails
    in_venv.chmod(0o755)
    done = set_up(tmp_path, failing)

    assert done.returncode == 1
    assert "pip could not install: --editable .[server,local," in done.stderr
    assert "the package index cannot be reached" in done.stderr
    assert not (tmp_path / "stamp").exists()


def test_the_makefile_says_what_it_can_do() -> None:
    done = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, timeout=20)

    assert done.returncode == 0
    for target in ("make demo", "make dev", "make test", "make check"):
        assert target in done.stdout
