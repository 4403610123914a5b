"""Deciding whether the tests catch a change; see `mutants`."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from child_processes import in_child
from planting import Mutant
from recording import OPTIONS

FIRST_TESTS = 40
MAX_TESTS = 600
MAX_SECONDS = 40
"""The seconds of other tests that a change is met by, as they took when they were recorded."""
TEST_SECONDS = 20
RUN_SECONDS = 60
SLOWDOWN = 5
"""The factor by which tests may take longer than recorded before they hang."""
QUICK_SECONDS = 0.5
"""A test that takes longer must fail twice, because a busy machine can fail it once."""
STATEMENT_LINES = 8
IMPORT = "the import of the tests"


class Verdict(NamedTuple):
    """Whether the tests catch a change."""

    mutant: Mutant
    is_executed: bool
    caught_by: str | None
    """The test that fails with the change."""


class Progress:
    """A pytest plugin that writes the name of the running test to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._path.write_text(nodeid)


def run_tests(workplace: Path, tests: list[str], seconds: float) -> int:
    """Run tests until one fails or takes too long; return the exit status of pytest."""
    selection = workplace / "selection.txt"
    selection.write_text("\n".join(tests))
    return int(
        pytest.main(
            [*OPTIONS, "-x", f"--timeout={seconds}", f"@{selection}"],
            plugins=[Progress(workplace / "progress.txt")],
        )
    )


class Judge:
    """Decides whether the tests catch a change, in a copy of the repository."""

    def __init__(
        self, workplace: Path, recorded: dict[str, Any], patience: float = MAX_SECONDS
    ) -> None:
        self._workplace = workplace
        self._patience = patience
        self._lines = recorded["lines"]
        self._seconds: dict[str, float] = recorded["seconds"]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute a line, those that most likely notice a change first.

        Of a line that runs when its module is imported, the tests that execute a use of what it
        defines come first. The tests of the module that mirrors the changed one come next, and
        then those in folders near its own. Within each group, the quickest run of each test
        function comes first.
        """
        lines, path = self._lines.get(mutant.file, {}), Path(mutant.file)
        names: set[str] = set()
        for line in range(mutant.line, mutant.line - STATEMENT_LINES, -1):
            names = self._tests_at(lines, line)
            if names:  # A line inside a statement may not count as executed.
                break
        users: set[str] = set()
        if "" in names:  # It runs when the module is imported.
            source = (self._workplace / "splitarrow" / mutant.file).read_text()
            for line in find_uses(source, mutant.line):
                users |= self._tests_at(lines, line)
            names = {name for contexts in lines.values() for name in contexts}
            names |= {name for name in self._seconds if _distance(path, name) < len(path.parts) - 1}
        runs: Counter[str] = Counter()
        keys: dict[str, tuple[bool, bool, int, int, float]] = {}
        for name in sorted(names & self._seconds.keys(), key=lambda n: (self._seconds[n], n)):
            function = name.partition("[")[0]
            is_mirror, distance = name.startswith(_mirror(mutant)), _distance(path, name)
            order = (not is_mirror, distance, runs[function], self._seconds[name])
            keys[name] = (name not in users, *order)
            runs[function] += 1
        return sorted(keys, key=keys.__getitem__)

    def _tests_at(self, lines: dict[str, list[str]], line: int) -> set[str]:
        """Return the tests that execute a line, with all those that share its fixture."""
        names = set(lines.get(str(line), ()))
        shared = tuple(name for name in names if name and "::" not in name)
        return names | {name for name in self._seconds if name.startswith(shared)}

    def judge(self, mutant: Mutant) -> Verdict:
        """Plant a change and run the tests of its line until one fails."""
        tests = self.tests_of(mutant)  # before the change, whose lines have other numbers
        if not tests:
            return Verdict(mutant, False, None)
        path = self._workplace / "splitarrow" / mutant.file
        original = path.read_text()
        path.write_text(mutant.source)
        try:
            failed = (test for part in self._parts(mutant, tests) for test in self._failing(part))
            return Verdict(mutant, True, next(failed, None))
        finally:
            path.write_text(original)

    def _parts(self, mutant: Mutant, tests: list[str]) -> Iterator[list[str]]:
        """Yield tests of the changed module, then some others, then those that are quick enough.

        A few tests start in a fraction of the time that all take, and mostly suffice.
        """
        own = sum(test.startswith(_mirror(mutant)) for test in tests[:FIRST_TESTS])
        yield tests[:own]
        yield tests[own : own + FIRST_TESTS]
        left = self._patience
        rest: list[str] = []
        for test in tests[own + FIRST_TESTS : MAX_TESTS]:
            left -= self._seconds[test]
            if left >= 0:
                rest.append(test)
        yield rest

    def _failing(self, tests: list[str]) -> Iterator[str]:
        """Yield the tests that fail."""
        while tests:
            failed = self._first_failing(tests)
            if failed is None:
                return
            is_sure = failed not in tests or self._seconds[failed] < QUICK_SECONDS
            if is_sure or self._first_failing([failed]) is not None:
                yield failed
            tests = tests[tests.index(failed) + 1 :] if failed in tests else []

    def _first_failing(self, tests: list[str]) -> str | None:
        progress = self._workplace / "progress.txt"
        progress.write_text(IMPORT)
        recorded = [self._seconds[test] for test in tests]
        slowest = max(TEST_SECONDS, SLOWDOWN * max(recorded))
        seconds = RUN_SECONDS + SLOWDOWN * sum(recorded)
        status = in_child(self._workplace, seconds, run_tests, tests, slowest)
        if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return None
        return progress.read_text()


def find_uses(source: str, line: int) -> set[int]:
    """Return the lines that use what a line outside of functions defines.

    They are those that name a variable that it assigns, or the body of a function in whose head
    it is.
    """
    tree = ast.parse(source)
    uses: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or not _first_line(node) <= line <= _end_line(node):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if line < node.body[0].lineno:
                uses.update(range(node.body[0].lineno, _end_line(node) + 1))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found = (each for target in targets for each in ast.walk(target))
            names = {each.id for each in found if isinstance(each, ast.Name)}
            uses.update(
                each.lineno
                for each in ast.walk(tree)
                if (isinstance(each, ast.Name) and each.id in names and each.lineno != line)
                or (isinstance(each, ast.Attribute) and each.attr in names)
            )
    return uses


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min(each.lineno for each in (node, *decorators))


def _end_line(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def _mirror(mutant: Mutant) -> str:
    """Return how the names of the tests of a module begin."""
    path = Path(mutant.file)
    return f"tests/{path.parent}/test_{path.stem}"


def _distance(path: Path, test: str) -> int:
    """Return how many folders of a changed module do not lead to a test."""
    folders, test_folders = path.parent.parts, Path(test.partition("::")[0]).parts[1:-1]
    pairs = zip(folders, test_folders, strict=False)
    return len(folders) - len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
