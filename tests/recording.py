"""Recording which test executes which line; see `mutants`."""

from __future__ import annotations

import difflib
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

OPTIONS = [
    *("-q", "-p", "no:cacheprovider"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # Some plugins are loaded already.
]
"""Options of pytest."""


class Recorder:
    """A pytest plugin that records the lines that each test executes, and how long it takes."""

    def __init__(self, coverage: Any) -> None:
        self._coverage = coverage
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    def pytest_runtest_protocol(self, item: Any) -> None:
        self._coverage.switch_context(item.nodeid)

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


def record(workplace: Path, tests: list[str]) -> None:
    """Run tests, and write what they execute to ``lines.json``."""
    import coverage
    import pytest

    package = workplace / "splitarrow"
    recording = coverage.Coverage(
        data_file=None, include=[f"{package}/*"], omit=[f"{package}/tests/*"], config_file=False
    )
    recording.start()
    recorder = Recorder(recording)
    ignored = "ignore::coverage.exceptions.CoverageWarning"
    pytest.main([*OPTIONS, "-W", ignored, *tests], plugins=[recorder])
    recording.stop()
    data = recording.get_data()
    lines = {
        str(Path(file).relative_to(package)): data.contexts_by_lineno(file)
        for file in data.measured_files()
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
