from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"midstream": ROOT / "extensions", "midstream_client": ROOT / "sdk_client"}

_ROOTS = ("extensions", "sdk_client", "graphs", "tests", "docs", "bench")

OUTSIDE = """
import sys
from pathlib import Path

import midstream
import midstream_client.protocol
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph

builder = StateGraph(midstream.MidstreamState)
model = GenericFakeChatModel(messages=iter([AIMessage("hello there")]))
builder.add_node("model", midstream.ModelNode(model))
builder.add_edge(START, "model")
final = builder.compile().invoke({"messages": [("user", "hi")]})
assert [message.text for message in final["messages"]] == ["hi", "hello there"], final

for name in midstream.__all__:
    getattr(midstream, name)
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] in ("midstream", "midstream_client"):
        assert Path(module.__file__).is_relative_to(sys.argv[1]), module.__file__
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    _python(*command)
    (built,) = folder.glob("langgraph_midstream-*.whl")
    return built


def test_wheel_holds_the_two_packages_typed_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    tops = {name.partition("/")[0] for name in names}
    assert tops == {"midstream", "midstream_client", f"langgraph_midstream-{_version()}.dist-info"}
    assert {"midstream/py.typed", "midstream_client/py.typed"} <= set(names)
    sources = {
        str(path.relative_to(root))
        for package, root in PACKAGES.items()
        for path in (root / package).rglob("*.py")
    }
    assert sources == {name for name in names if name.endswith(".py")}


def test_wheel_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    _python("pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel))

    _python("-c", OUTSIDE, str(site), path=site, folder=tmp_path)


@pytest.mark.parametrize("package", PACKAGES)
def test_all_names_exactly_what_is_visible(package: str) -> None:
    module = import_module(package)
    visible = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }

    assert sorted(visible) == sorted(module.__all__)


def test_protocol_loads_no_langgraph() -> None:
    code = "import sys, midstream_client.protocol; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = _python("-c", code, path=PACKAGES["midstream_client"]).split()

    assert {"langgraph", "langgraph_api", "midstream"} & set(loaded) == set()


def test_client_never_imports_the_graphs_side() -> None:
    for module, imported in _imports("midstream_client").items():
        roots = {name.partition(".")[0] for name in imported}
        assert not {"langgraph", "langchain_core", "midstream"} & roots, module


def test_imports_point_one_way() -> None:
    """A cycle is a design fault, also one that an import inside a function would hide."""
    imports = _imports("midstream")
    inner = {
        module: {found for name in names if (found := _module_of(name, imports)) not in (None, module)}
        for module, names in imports.items()
    }

    tuple(TopologicalSorter(inner).static_order())  # raises for a cycle, and names it
    assert inner["midstream.errors"] == set()
    assert [module for module, names in inner.items() if "midstream" in names] == []


def test_nodes_and_server_do_not_import_each_other() -> None:
    tops = {"midstream.model_node", "midstream.tool_node", "midstream.server"}
    imports = _imports("midstream")
    for module in tops & imports.keys():
        assert not (tops - {module}) & {_module_of(name, imports) for name in imports[module]}, module


def test_one_module_at_most_touches_the_server_that_it_runs_in() -> None:
    touching = {
        module
        for module, names in _imports("midstream").items()
        if any(name.partition(".")[0] in ("langgraph_api", "langgraph_runtime") for name in names)
    }

    assert len(touching) <= 1, touching


def test_everything_that_is_imported_is_declared() -> None:
    """A machine that was set up by hand hides what `make install` leaves out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = _closure([*project["dependencies"], *(each for extra in extras.values() for each in extra)])
    ours = {path.stem for root in _ROOTS for path in (ROOT / root).rglob("*")} | set(_ROOTS)

    providers = packages_distributions()
    missing = {
        f"{path.relative_to(ROOT)}: {top}"
        for root in _ROOTS
        for path in (ROOT / root).rglob("*.py")
        if "node_modules" not in path.parts  # what `bench.typescript` installs
        for top in {name.partition(".")[0] for name in _imported(ast.parse(path.read_text()))}
        if top not in sys.stdlib_module_names
        and top not in ours
        and declared.isdisjoint(map(canonicalize_name, providers.get(top, ())))
    }
    assert missing == set()


def test_version_is_the_newest_of_the_changelog() -> None:
    versions = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert versions[0] == _version()


def _closure(requirements: list[str]) -> set[str]:
    """The distributions that these requirements bring, as far as they are installed."""
    found: set[str] = set()
    todo = [Requirement(each) for each in requirements]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        wanted = {"", *requirement.extras}
        new = {f"{name}[{extra}]" for extra in wanted} - found
        if not new:
            continue
        found |= {name, *new}
        try:
            further = [Requirement(each) for each in distribution(name).requires or ()]
        except PackageNotFoundError:
            continue
        todo += [
            each
            for each in further
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in wanted)
        ]
    return found


def _version() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return version


def _python(*arguments: str, path: Path | None = None, folder: Path | None = None) -> str:
    """Runs this interpreter, on a module or with its own flags, and returns what it printed."""
    command = [sys.executable, *(arguments if arguments[0] == "-c" else ("-m", *arguments))]
    environment = os.environ if path is None else {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def _imports(package: str) -> dict[str, set[str]]:
    """What each module of the package imports, wherever in the file: `a.b` for `import a.b`, `a.b.c` for
    `from a.b import c`. What only a type checker would import does not count."""
    root = PACKAGES[package]
    found = {}
    for path in (root / package).rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[module] = set(_imported(ast.parse(path.read_text())))
    return found


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module, names, level):
                assert level == 0, "imports are absolute here"
                yield from (f"{module}.{alias.name}" for alias in names)
            case _:
                yield from _imported(node)


def _module_of(name: str, modules: dict[str, set[str]]) -> str | None:
    """The module of the package that an imported name comes from; None for a name from elsewhere."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None
