"""Recording which test executes which line; see `mutants`.

Processes that tests start are recorded too. What belongs to a fixture of several tests is recorded
for the folder or module whose tests can use it.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import hashlib
import json
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

OPTIONS = [
    *("-q", "-p", "no:cacheprovider"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # Some plugins are loaded already.
]
"""Options of pytest."""
CONFIGURATION = """
[run]
data_file = {folder}/data
parallel = true
context = ${{RECORDED_TEST-}}
include = {folder}/splitarrow/*
omit = {folder}/splitarrow/tests/*
patch = _exit
sigterm = true
disable_warnings = no-data-collected
"""
STOP_SECONDS = 5


class Recorder:
    """A pytest plugin that records the lines that each test executes, and how long it takes."""

    def __init__(self, coverage: Any) -> None:
        self._coverage = coverage
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    def _switch(self, name: str) -> None:
        self._coverage.switch_context(name)
        os.environ["RECORDED_TEST"] = name

    def pytest_collection_finish(self) -> None:
        """Let the fixture that kills daemons first stop them, so that they write their records."""
        daemons: Any = sys.modules.get("helpers.daemons")
        if daemons is None:
            return
        kill = daemons.kill

        def stop(daemon: Any) -> None:
            with contextlib.suppress(Exception):
                daemon.send_signal(signal.SIGTERM)
                daemon.wait(STOP_SECONDS)
            kill(daemon)

        daemons.kill = stop

    def pytest_runtest_protocol(self, item: Any) -> None:
        self._switch(item.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        name = os.environ["RECORDED_TEST"]
        if fixturedef.scope != "function":
            self._switch(fixturedef.baseid)
        try:
            return (yield)
        finally:
            self._switch(name)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)


def hash_tests(folder: Path, tests: list[str]) -> dict[str, str]:
    """Return the modules of some tests, with a hash of the contents of each."""
    paths = [folder / each for each in tests]
    modules = [m for path in paths for m in (path.rglob("test_*.py") if path.is_dir() else [path])]
    return {
        str(module.relative_to(folder)): hashlib.sha256(module.read_bytes()).hexdigest()
        for module in modules
    }


def merge_records(old: dict[str, Any], new: dict[str, Any], modules: set[str]) -> dict[str, Any]:
    """Return a record of tests in which that of some modules is replaced by a new one."""

    def is_kept(test: str) -> bool:
        return test.partition("::")[0] not in modules

    lines: dict[str, dict[str, list[str]]] = {}
    for record, keeps in ((old, is_kept), (new, lambda _: True)):
        for file, contexts in record["lines"].items():
            for line, tests in contexts.items():
                merged = lines.setdefault(file, {}).setdefault(line, [])
                merged += [test for test in tests if keeps(test) and test not in merged]
    seconds = {test: each for test, each in old["seconds"].items() if is_kept(test)}
    failed = [test for test in old["failed"] if is_kept(test)]
    return {
        "lines": lines,
        "seconds": seconds | new["seconds"],
        "failed": failed + new["failed"],
        "modules": {m: h for m, h in old["modules"].items() if m not in modules} | new["modules"],
        "sources": old["sources"] | new["sources"],
    }


def drop_modules(record: dict[str, Any], modules: set[str]) -> dict[str, Any]:
    """Return a record without the tests of some modules."""
    empty = {"lines": {}, "seconds": {}, "failed": [], "modules": {}, "sources": {}}
    return merge_records(record, empty, modules) if modules else record


def update_lines(record: dict[str, Any], root: Path) -> dict[str, Any]:
    """Return a record whose lines are those of the present sources, as far as they are in both.

    Tests of modules that are gone leave it: to run one would fail, whatever the code.
    """
    record = drop_modules(
        record, {name for name in record["modules"] if not (root / name).exists()}
    )
    lines: dict[str, dict[str, list[str]]] = {}
    sources: dict[str, str] = {}
    for file, contexts in record["lines"].items():
        path = root / file
        if not path.exists():
            continue
        old, sources[file] = record["sources"][file], path.read_text()
        matcher = difflib.SequenceMatcher(None, old.splitlines(), sources[file].splitlines(), False)
        lines[file] = {
            str(block.b + offset + 1): contexts[str(block.a + offset + 1)]
            for block in (matcher.get_matching_blocks() if old != sources[file] else ())
            for offset in range(block.size)
            if str(block.a + offset + 1) in contexts
        }
        if old == sources[file]:
            lines[file] = contexts
    return {**record, "lines": lines, "sources": sources}


def find_contexts(data: Any, file: Path) -> dict[str, list[str]]:
    """Return the tests that execute each line of a file.

    A line outside of functions belongs to no test: many processes import it.
    """
    inside = find_function_lines(file.read_text())
    contexts: dict[int, list[str]] = data.contexts_by_lineno(str(file))
    return {str(n): names if n in inside else [""] for n, names in contexts.items()}


def find_function_lines(source: str) -> set[int]:
    """Return the lines of the bodies of functions."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines.update(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
    return lines


def record(workplace: Path, tests: list[str]) -> None:
    """Run tests, and write what they execute to ``lines.json``."""
    import coverage

    package = workplace / "splitarrow"
    configuration = workplace / "coverage.ini"
    configuration.write_text(CONFIGURATION.format(folder=workplace))
    os.environ["COVERAGE_PROCESS_START"] = str(configuration)
    recording = coverage.Coverage(config_file=str(configuration))
    recording.start()
    recorder = Recorder(recording)
    ignored = "ignore::coverage.exceptions.CoverageWarning"
    pytest.main([*OPTIONS, "-W", ignored, *tests], plugins=[recorder])
    recording.stop()
    recording.save()
    recording.combine()
    data = recording.get_data()
    lines = {
        str(Path(file).relative_to(package)): find_contexts(data, Path(file))
        for file in data.measured_files()
        if file.endswith(".py")  # Templates are compiled as well.
    }
    usable = {n: s for n, s in recorder.seconds.items() if n not in recorder.failed}
    if not usable:
        sys.exit("no test passed")
    found = {
        "lines": lines,
        "seconds": usable,
        "failed": recorder.failed,
        "modules": hash_tests(package, tests),
        "sources": {file: (package / file).read_text() for file in lines},
    }
    (workplace / "lines.json").write_text(json.dumps(found))
