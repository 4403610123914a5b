"""The layout of the package, proven from its source: floors, purity, sizes, a light front door."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {"build", "deploy", "dist", "docs", "examples", "site", "tests"}
# Modules that are installed beside the package, not in it.
BESIDE = {"pyspark_splitarrow.py"}
MAX_LINES = 400

FLOORS = {
    "errors": 0,
    "fbs": 0,
    "proto": 0,
    "formats": 1,
    "protocol": 2,
    "transport": 3,
    "client": 4,
    "server": 4,
    "__main__": 5,
    "benchmarks": 5,
    "cli": 5,
    "pipeline": 5,
}
TOP_FLOOR = max(FLOORS.values())
FRONT_DOOR = {"__init__", "aio"}
PURE = {"formats", "protocol"}
IMPURE_MODULES = {
    "anyio",
    "asyncio",
    "logging",
    "multiprocessing",
    "os",
    "select",
    "selectors",
    "signal",
    "socket",
    "structlog",
    "subprocess",
    "threading",
    "time",
}
HEAVY = {"grpc", "matplotlib", "pyspark", "torch", "ucxx", "vortex"}


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the package.

    `name` is relative to the package ("" is its front door, "server.catalog" a package in it).
    """

    name: str
    is_package: bool
    source: str

    @property
    def top(self) -> str:
        """The part of the package that it belongs to."""
        return self.name.partition(".")[0] or "__init__"


@dataclass(frozen=True, slots=True)
class Import:
    """One import: of something in the package (relative to it) or of something else."""

    name: str
    internal: bool
    relative: bool
    line: int

    @property
    def top(self) -> str:
        """The part of the package, or the foreign package, that is imported."""
        return self.name.partition(".")[0] or "__init__"


def source_files() -> Iterator[Path]:
    """Every Python file of the package."""
    for path in sorted(ROOT.rglob("*.py")):
        first = path.relative_to(ROOT).parts[0]
        if first not in OUTSIDE | BESIDE and not first.startswith("."):
            yield path


def read_module(path: Path) -> Module:
    parts = path.relative_to(ROOT).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return Module(".".join(parts[:-1] if is_package else parts), is_package, path.read_text())


def imports_of(module: Module, top_level: set[str]) -> Iterator[Import]:
    """Every import in a module, those in functions and under TYPE_CHECKING included.

    `top_level` names what lies directly in the package: `from .. import x` may mean a module or
    a name of the front door.
    """

    def inside(level: int, name: str) -> str:
        here = module.name.split(".") if module.name else []
        drop = level - 1 if module.is_package else level
        if drop > len(here):
            raise ValueError(f"{module.name}: an import leaves the package")
        return ".".join([*here[: len(here) - drop], *([name] if name else [])])

    for node in ast.walk(ast.parse(module.source)):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield _absolute(alias.name, node.lineno)
            case ast.ImportFrom(level=0, module=str(name)):
                yield _absolute(name, node.lineno)
            case ast.ImportFrom(level=level, module=name, names=names):
                target = inside(level, name or "")
                if target:
                    yield Import(target, True, True, node.lineno)
                else:
                    for alias in names:
                        found = alias.name if alias.name in top_level else ""
                        yield Import(found, True, True, node.lineno)
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                dots = len(name) - len(name.lstrip("."))
                if dots:
                    yield Import(inside(dots, name[dots:]), True, True, node.lineno)
                else:
                    yield _absolute(name, node.lineno)
            case _:
                pass


def _absolute(name: str, line: int) -> Import:
    first, _, rest = name.partition(".")
    internal = first == "splitarrow"
    return Import(rest if internal else name, internal, False, line)


def violations(module: Module, top_level: set[str]) -> list[str]:
    """What a module does against the architecture, one line for each."""
    return [
        f"{module.name or '__init__'}, line {imported.line}: {problem}"
        for imported in imports_of(module, top_level)
        if (problem := _problem(module, imported))
    ]


def _problem(module: Module, imported: Import) -> str | None:
    here, there = module.top, imported.top
    if not imported.internal:
        if here in PURE and there in IMPURE_MODULES:
            return f"{here} is pure and must not import {imported.name}"
        return None
    if not imported.relative:
        return f"import {imported.name or 'splitarrow'} by a relative path"
    if here in FRONT_DOOR or here == there:
        return None
    if here not in FLOORS:
        return f"{here} has no floor"
    if there in FRONT_DOOR:
        allowed = FLOORS[here] == TOP_FLOOR
    elif there not in FLOORS:
        return f"{there} has no floor"
    else:
        allowed = FLOORS[there] < FLOORS[here] or FLOORS[here] == FLOORS[there] == TOP_FLOOR
    return None if allowed else f"{here} must not import {there}: it is not on a floor below"


FILES = list(source_files())
IDS = [str(path.relative_to(ROOT)) for path in FILES]
TOP_LEVEL = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_imports_keep_to_the_floors(path: Path) -> None:
    assert violations(read_module(path), TOP_LEVEL) == []


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_modules_are_small(path: Path) -> None:
    if not path.stem.endswith("_generated"):
        assert len(path.read_text().splitlines()) <= MAX_LINES


def test_every_package_is_listed() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = set(tomllib.load(file)["tool"]["setuptools"]["packages"])
    folders = {path.parent.relative_to(ROOT) for path in FILES}
    assert {".".join(("splitarrow", *folder.parts)) for folder in folders} <= listed
    without = [str(folder) for folder in folders if not (ROOT / folder / "__init__.py").is_file()]
    assert without == [], "folders without an __init__.py"


def _import_in_a_new_process() -> dict[str, list[str]]:
    script = """if True:
        import os, sys
        before = dict(os.environ)
        import splitarrow
        changed = sorted(k for k in before.keys() | os.environ.keys()
                         if before.get(k) != os.environ.get(k))
        import json
        print(json.dumps({"modules": sorted(sys.modules), "changed": changed}))
    """
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_importing_is_light_and_has_no_side_effects() -> None:
    seen = _import_in_a_new_process()
    assert HEAVY.isdisjoint(seen["modules"])
    assert seen["changed"] == []


def test_the_version_is_told_once() -> None:
    import splitarrow

    assert splitarrow.__version__ == metadata.version("splitarrow")


# The checker itself.

PARTS = set(FLOORS) | FRONT_DOOR


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("protocol.splitter", "from ..server import app"),
        ("protocol.splitter", "def f():\n    from ..transport.tcp import Tcp"),
        ("protocol.splitter", "from .. import client"),
        ("protocol.splitter", "from .. import open"),
        ("protocol.splitter", "from ..aio import open"),
        ("protocol.splitter", "from .. import novelty"),
        ("protocol.splitter", "from importlib import import_module\nimport_module('..server', '')"),
        ("protocol.splitter", "from splitarrow.errors import ProtocolError"),
        ("protocol.splitter", "import splitarrow"),
        ("protocol.splitter", "import asyncio.streams"),
        ("protocol.splitter", "import time"),
        ("protocol.splitter", "from os import path"),
        ("formats.arrow.message", "import socket"),
        ("formats.arrow.message", "from ...protocol import tags"),
        ("formats.arrow.message", "if TYPE_CHECKING:\n    from ...protocol.tags import Tag"),
        ("server.session", "from ..client import stream"),
        ("server.catalog.files", "from ...client.stream import Stream"),
        ("client.stream", "from ..server.session import Session"),
        ("errors", "from .fbs import arrow_generated"),
        ("transport.tcp", "from ..cli import main"),
        ("novelty", "from .errors import ProtocolError"),
    ],
)
def test_a_violation_is_found(name: str, source: str) -> None:
    assert len(violations(Module(name, False, source), PARTS)) == 1


@pytest.mark.parametrize(
    ("name", "is_package", "source"),
    [
        ("", True, "from . import aio, errors\nfrom .client.stream import Stream\n"),
        ("aio", False, "from .server.app import serve\nfrom .client import stream"),
        ("protocol.splitter", False, "from .tags import Tag\nfrom ..errors import ProtocolError"),
        ("protocol", True, "from . import tags\nfrom ..formats.arrow import message"),
        ("formats.arrow", True, "from ...errors import ProtocolError\nimport struct, pyarrow"),
        ("server.catalog.files", False, "from ..config import Config\nimport os, anyio, time"),
        ("server.catalog", True, "from ..config import Config\nfrom ...transport import tcp"),
        ("cli.bench", False, "from ..benchmarks import runner\nfrom .. import __version__, serve"),
    ],
)
def test_what_is_allowed_passes(name: str, is_package: bool, source: str) -> None:
    assert violations(Module(name, is_package, source), PARTS) == []


def test_an_import_out_of_the_package_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves the package"):
        violations(Module("errors", False, "from ..elsewhere import x"), PARTS)
