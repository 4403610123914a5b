"""The architecture, checked against the imports: layers, cycles, purity, mirrored tests."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

from helpers.package import ROOT, source_files

# From the bottom up, for each package with layers. A module imports only from lower layers of
# every package that it shares with the imported module.
LAYERS: dict[str, list[set[str]]] = {
    "": [
        {"errors"},
        {"fbs", "proto"},
        {"formats"},
        {"geo", "protocol", "variant"},
        {"filters"},
        {"isolation", "memory", "sinks", "transport"},
        {"publication"},
        {"client", "server"},
        {"pipeline", "pytorch", "relay", "testing"},
        {"benchmarks"},
        {"cli"},
        {"__main__"},
    ],
    "benchmarks": [
        {"datasets", "machine", "statistics"},
        {"options"},
        {"backends"},
        {"report", "worker"},
        {"plot", "runner", "tables"},
        {"__main__", "studies"},
    ],
    "benchmarks.studies": [
        {
            "checker",
            "counting",
            "fairness",
            "gpu",
            "http",
            "loader_peers",
            "loader_report",
            "paired",
            "parquet",
            "relay",
            "scale",
            "sharing",
            "spark_peers",
            "tensors",
            "variant",
            "vortex",
        },
        {"flight", "loader_round", "network", "spark_run", "stream_memory"},
        {"loader", "serving", "spark"},
    ],
    "client": [
        {"failures", "tokens", "uris"},
        {"arguments"},
        {"stream"},
        {"http", "rpc"},
        {"dataset"},
        {"cluster"},
        {"connect"},
        {"kept_clients"},
        {"open"},
    ],
    "client.cluster": [
        {"info", "publication"},
        {"client"},
    ],
    "client.dataset": [
        {"endpoints", "polars_scan", "requests"},
        {"dataset"},
        {"sql", "url"},
        {"client"},
        {"aio"},
    ],
    "client.http": [
        {"connection"},
        {"exchange"},
        {"download"},
    ],
    "client.rpc": [
        {"errors", "oauth"},
        {"logins"},
        {"channel"},
        {"forked_channel", "info"},
        {"download", "upload"},
    ],
    "client.stream": [
        {"batch_stream", "remote_bodies"},
        {"batch_decoder", "device_stream", "format_choice"},
        {"vortex_decoder"},
        {"decoders"},
        {"device_decoder", "tracing"},
        {"reader"},
        {"opening", "read_ahead"},
        {"stream"},
    ],
    "filters": [
        {"tree"},
        {"literals"},
        {"binding"},
        {"evaluation", "expressions", "ranges", "sql", "substrait"},
    ],
    "memory": [
        {"array_layout", "device", "pool"},
        {"device_region", "interfaces", "pinned"},
        {"imports"},
        {"device_batch"},
        {"device_bodies"},
        {"device_memory"},
    ],
    "pipeline": [
        {
            "casting",
            "folder_publication",
            "java",
            "options",
            "spark_versions",
            "submit",
        },
        {"dictionaries", "spark_errors", "stored_types"},
        {"types"},
        {"filters", "shards", "workers"},
        {"reader", "writer"},
        {"batch_queries", "stream_offsets"},
        {"streaming_queries"},
        {"datasource", "jvm"},
        {"plan", "spark_session"},
        {"publish"},
    ],
    "publication": [
        {"atomic_files", "layout", "patterns"},
        {"manifest", "storage", "table_formats"},
        {"column_ranges", "locks"},
        {"shard_files"},
        {"version_store"},
    ],
    "pytorch": [
        {"decoding", "order", "record_batches"},
        {"plan"},
        {"announcement", "mixing", "position", "tensors"},
        {"device_tensors", "mapped_tensors", "metrics"},
        {"blocks", "shared_batch"},
        {"bad_rows", "packing", "provenance"},
        {"loader"},
        {"dataset"},
        {"map_dataset", "mixture"},
        {"audit", "packed"},
    ],
    "server": [
        {"config", "logs", "metrics", "shared_lock", "shares"},
        {"usage"},
        {"addresses", "catalog", "prefetch", "reads", "refusals", "signals", "streams"},
        {"auth", "shm", "uploads"},
        {"bodies", "report"},
        {"spans"},
        {"tracing"},
        {"context"},
        {"caller", "chunks", "data_stream", "listeners", "reload"},
        {"receiving"},
        {"control", "http", "session"},
        {"daemon"},
        {"embedded", "worker_process"},
        {"workers"},
        {"process"},
    ],
    "relay": [
        {"description", "identity"},
        {"peers"},
        {"prefetch", "upstream"},
        {"datasets"},
        {"relay"},
    ],
    "server.auth": [
        {"issuer", "principal"},
        {"jwt", "tickets", "token_file"},
        {"access_control"},
    ],
    "server.catalog": [
        {"batch_ranges", "decoding_shares", "eviction", "suggestions"},
        {"dataset"},
        {"filters", "tensors"},
        {"selection"},
        {"messages"},
        {"files", "tables"},
        {
            "deletion_vectors",
            "delta_features",
            "device_table",
            "object_cache",
            "vortex_encoding",
        },
        {"arriving", "delta"},
        {"published_shards"},
        {"published"},
        {"stored_files"},
        {"catalog"},
    ],
    "server.config": [
        {"advertised", "declaration"},
        {"settings"},
        {"configuration"},
    ],
    "server.control": [
        {"http2"},
        {"grpc_server"},
        {"call"},
        {"actions", "do_put", "health", "info", "interceptor"},
        {"do_get"},
        {"service"},
        {"plane"},
    ],
    "server.http": [
        {"formats", "responses", "service", "sessions"},
        {"parameters", "preview"},
        {"page"},
        {"data", "datasets", "upload"},
        {"application"},
        {"listener"},
    ],
    "server.uploads": [
        {"folder", "publication", "quota"},
        {"upload"},
        {"store"},
    ],
}

# The public API re-exports names from every layer. Only the top layers import it.
PUBLIC_API = {"__init__", "aio"}
MAY_IMPORT_PUBLIC_API = {"pipeline", "testing", "benchmarks", "cli", "__main__", *PUBLIC_API}

# Only editable installs link these (deploy/build_package.py).
NOT_IN_WHEEL = {"splitarrow.benchmarks.studies"}

PURE = {"filters", "formats", "protocol"}
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

    `name` is relative to the package: "" is its `__init__`, "server.catalog" a package in it.
    """

    name: str
    is_package: bool
    source: str


@dataclass(frozen=True, slots=True)
class Import:
    """An import of a module: of this package (relative to it), or of another one."""

    target: str
    internal: bool
    relative: bool
    line: int


def read_module(path: Path) -> Module:
    parts = path.relative_to(ROOT).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return Module(".".join(parts[:-1] if is_package else parts), is_package, path.read_text())


def imports_of(module: Module, names: Iterable[str]) -> Iterator[Import]:
    """Yield every import of a module, including those in functions and under TYPE_CHECKING.

    `names` are the modules of the package: `from .. import x` may import a module or a name.
    """
    known = set(names)

    def resolve(level: int, name: str) -> str:
        package = module.name.split(".") if module.name else []
        drop = level - 1 if module.is_package else level
        if drop > len(package):
            raise ValueError(f"{module.name}: an import leaves the package")
        return ".".join([*package[: len(package) - drop], *([name] if name else [])])

    for node in ast.walk(ast.parse(module.source)):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    yield _absolute(alias.name, node.lineno)
            case ast.ImportFrom(level=0, module=str(name)):
                yield _absolute(name, node.lineno)
            case ast.ImportFrom(level=level, module=name, names=aliases):
                base = resolve(level, name or "")
                for alias in aliases:
                    submodule = f"{base}.{alias.name}" if base else alias.name
                    target = submodule if submodule in known else base
                    yield Import(target, True, True, node.lineno)
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                dots = len(name) - len(name.lstrip("."))
                if dots:
                    yield Import(resolve(dots, name[dots:]), True, True, node.lineno)
                else:
                    yield _absolute(name, node.lineno)
            case _:
                pass


def _absolute(name: str, line: int) -> Import:
    first, _, rest = name.partition(".")
    internal = first == "splitarrow"
    return Import(rest if internal else name, internal, False, line)


def violations(module: Module, names: Iterable[str]) -> list[str]:
    """Return a line for each import of a module that the architecture forbids."""
    return [
        f"{module.name or '__init__'}, line {found.line}: {problem}"
        for found in imports_of(module, names)
        if (problem := _problem(module.name, found))
    ]


def _problem(importer: str, found: Import) -> str | None:
    top = importer.partition(".")[0] or "__init__"
    if not found.internal:
        if top in PURE and found.target.partition(".")[0] in IMPURE_MODULES:
            return f"{top} is pure and must not import {found.target}"
        return None
    if not found.relative:
        return f"import {found.target or 'splitarrow'} with a relative path"
    target_top = found.target.partition(".")[0] or "__init__"
    if top in PUBLIC_API:
        return None
    if target_top in PUBLIC_API:
        allowed = top in MAY_IMPORT_PUBLIC_API
        return None if allowed else f"{top} must not import the public API"
    return _layer_problem(importer, found.target)


def _layer_problem(importer: str, target: str) -> str | None:
    package, ours, theirs = split_at_common_package(importer, target)
    layers = LAYERS.get(package)
    if layers is None or ours == theirs or not ours or not theirs:
        return None
    level = {part: number for number, parts in enumerate(layers) for part in parts}
    for part in (ours, theirs):
        if part not in level:
            return f"{package or 'the package'} has no layer for {part}"
    if level[theirs] < level[ours]:
        return None
    return f"{ours} must not import {theirs}, which is not in a lower layer"


def split_at_common_package(one: str, other: str) -> tuple[str, str, str]:
    """Return the package that two modules share, and the part of it that each belongs to."""
    ours, theirs = one.split("."), other.split(".")
    depth = 0
    while depth < min(len(ours), len(theirs)) and ours[depth] == theirs[depth]:
        depth += 1
    return (
        ".".join(ours[:depth]),
        "".join(ours[depth : depth + 1]),
        "".join(theirs[depth : depth + 1]),
    )


def cycle_in(imports: dict[str, set[str]]) -> list[str]:
    """Return the modules of one import cycle, or an empty list."""
    finished: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in finished:
            return []
        for target in sorted(imports.get(name, ())):
            if cycle := visit(target, [*path, name]):
                return cycle
        finished.add(name)
        return []

    for name in sorted(imports):
        if cycle := visit(name, []):
            return cycle
    return []


FILES = list(source_files())
MODULES = [read_module(path) for path in FILES]
NAMES = {module.name for module in MODULES}


def test_imports_respect_the_layers() -> None:
    assert [line for module in MODULES for line in violations(module, NAMES)] == []


def test_no_import_cycle() -> None:
    imports = {
        module.name: {
            found.target
            for found in imports_of(module, NAMES)
            if found.internal and found.target in NAMES - {module.name}
        }
        for module in MODULES
        if module.name not in ("", "aio")
    }
    assert cycle_in(imports) == []


def drawn_imports() -> set[tuple[str, str]]:
    """Return the imports between packages, without those that follow from others."""
    packages = {name.partition(".")[0] for name in NAMES if "." in name} - {"fbs", "proto"}
    direct: dict[str, set[str]] = {package: set() for package in packages}
    for module in MODULES:
        package = module.name.partition(".")[0]
        for found in imports_of(module, NAMES):
            target = found.target.partition(".")[0]
            if found.internal and package in packages and target in packages - {package}:
                direct[package].add(target)

    def reachable(package: str) -> set[str]:
        return direct[package].union(*(reachable(target) for target in direct[package]))

    return {
        (package, target)
        for package, targets in direct.items()
        for target in targets
        if not any(target in reachable(other) for other in targets - {target})
    }


def test_contributing_draws_the_imports() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    drawing = text.split("```mermaid")[1].split("```")[0]
    assert set(re.findall(r"(\w+) --> (\w+)", drawing)) == drawn_imports()


def test_the_readme_names_places_that_exist() -> None:
    section = (ROOT / "README.md").read_text().split("\n## Source code")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+?) \| (.+) \|$", section, re.MULTILINE)
    assert 8 <= len(rows) <= 12
    for folders, contents in rows:
        roots = [ROOT / name for name in re.findall(r"`([^`]+)`", folders)]
        for root in roots:
            assert root.exists(), f"README.md: no {root.name}"
        for name in re.findall(r"`([a-z_/]+)`", contents):
            places = [path for root in roots for path in (root / name, root / f"{name}.py")]
            assert any(path.exists() for path in places), f"README.md: no {name} in {folders}"


def test_every_package_is_listed() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = set(tomllib.load(file)["tool"]["setuptools"]["packages"])
    folders = {path.parent.relative_to(ROOT) for path in FILES}
    found = {".".join(("splitarrow", *folder.parts)) for folder in folders}
    assert not listed & NOT_IN_WHEEL
    assert found == listed | NOT_IN_WHEEL
    without = [str(folder) for folder in folders if not (ROOT / folder / "__init__.py").is_file()]
    assert without == [], "folders without an __init__.py"


def modules_without_tests() -> set[str]:
    """Return the modules `a/b/c.py` that have no tests `tests/a/b/test_c.py` or `test_c_*.py`."""
    tests = {path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    found: set[str] = set()
    for path in (each.relative_to(ROOT) for each in FILES):
        if path.name == "__init__.py" or path.stem.endswith(("_generated", "_pb2")):
            continue
        beside = {test.stem for test in tests if test.parent == path.parent}
        name = f"test_{path.stem}"
        if not any(stem == name or stem.startswith(f"{name}_") for stem in beside):
            found.add(str(path))
    return found


def test_the_list_of_modules_without_tests_is_exact() -> None:
    """Other tests cover these modules. A new module gets tests of its own."""
    listed = (ROOT / "tests" / "without_tests.txt").read_text().splitlines()
    assert listed == sorted(listed)
    assert modules_without_tests() == set(listed)


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


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("protocol.splitter", "from ..server import app"),
        ("protocol.splitter", "def f():\n    from ..transport.tcp import Tcp"),
        ("protocol.splitter", "from .. import client"),
        ("protocol.splitter", "from .. import open"),
        ("protocol.splitter", "from ..aio import open"),
        ("protocol.splitter", "from ..novelty import x"),
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
        ("server.auth.authenticator", "from ..session import Session"),
        ("server.catalog.filters", "from .files.parquet import ParquetDataset"),
        ("server.catalog.novelty", "from .dataset import ServedDataset"),
        ("client.stream.reader", "from ..rpc.channel import Channel"),
        ("client.stream.reader", "from ...server.session import Session"),
        ("errors", "from .fbs import arrow_generated"),
        ("transport.tcp", "from ..cli import main"),
        ("novelty", "from .errors import ProtocolError"),
    ],
)
def test_a_violation_is_found(name: str, source: str) -> None:
    assert len(violations(Module(name, False, source), NAMES)) == 1


@pytest.mark.parametrize(
    ("name", "is_package", "source"),
    [
        ("", True, "from . import aio, errors\nfrom .client.stream import Stream\n"),
        ("aio", False, "from .server.app import serve\nfrom .client import stream"),
        ("protocol.splitter", False, "from .tags import Tag\nfrom ..errors import ProtocolError"),
        ("protocol", True, "from . import tags\nfrom ..formats.arrow import message"),
        ("formats.arrow", True, "from ...errors import ProtocolError\nimport struct, pyarrow"),
        ("server.daemon", False, "from .config import Config\nimport os, anyio, time"),
        ("server.session", False, "from .logs import Log\nfrom ..transport import tcp"),
        ("client.rpc.download", False, "from ..stream.reader import Reader"),
        ("cli.bench", False, "from ..benchmarks import runner\nfrom .. import __version__, serve"),
    ],
)
def test_allowed_imports_pass(name: str, is_package: bool, source: str) -> None:
    assert violations(Module(name, is_package, source), NAMES) == []


def test_an_import_out_of_the_package_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves the package"):
        violations(Module("errors", False, "from ..elsewhere import x"), NAMES)


def test_a_cycle_is_found() -> None:
    assert cycle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
