"""Plant changes in the code, one at a time, and report those that no test catches.

``make mutants`` runs it. The changes are planted in a copy of the repository. A first run of the
tests records which test executes which line, so each change is met by the tests of its line alone:
first by those in the test module that mirrors the changed one, then by the others, the fastest
first. A change of a line that no test executes is not caught. One that makes the tests hang is.

``equivalent_mutants.toml`` lists changes that change nothing that a test could see, each with the
reason. They do not count.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planting import Mutant, choose_mutants
from recording import OPTIONS, hash_tests, merge_records, record

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = [
    *("protocol", "formats", "client", "server/auth"),
    *("transport/tcp.py", "transport/socket_channel.py", "transport/framing.py"),
    *("transport/frame_decoder.py", "transport/blocking.py", "transport/aio.py"),
    *("transport/registry.py", "transport/base.py", "transport/inproc.py"),
]
TESTS = [
    *("tests/protocol", "tests/formats", "tests/property", "tests/transport", "tests/contract"),
    *("tests/fault", "tests/client", "tests/server", "tests/publication", "tests/test_errors.py"),
    "tests/test_examples.py",
]
PRELOADED = [
    *("pytest", "hypothesis", "pyarrow.compute", "pyarrow.flight", "numpy", "grpc", "anyio"),
    *("pydantic_settings", "joserfc", "structlog", "trustme"),
]
FIRST_TESTS = 40
TEST_SECONDS = 20
RUN_SECONDS = 60
SLOWDOWN = 5
"""The factor by which tests may take longer than recorded before they hang."""
MAX_SECONDS = 60
"""The tests of a line that are run, by the time that they took when they were recorded."""
EQUIVALENT = ROOT / "tests" / "equivalent_mutants.toml"
STATEMENT_LINES = 8


def read_equivalent(path: Path = EQUIVALENT) -> set[tuple[str, str, str]]:
    """Return the changes that change nothing: their files, lines of code and descriptions."""
    listed = tomllib.loads(path.read_text())["equivalent"]
    return {(each["file"], each["code"], each["change"]) for each in listed if each["reason"]}


def run_tests(workplace: Path, tests: list[str]) -> int:
    """Run tests until one fails; return the exit status of pytest."""
    import pytest

    selection = workplace / "selection.txt"
    selection.write_text("\n".join(tests))
    return int(pytest.main([*OPTIONS, "-x", f"--timeout={TEST_SECONDS}", f"@{selection}"]))


def in_child(workplace: Path, seconds: float, function: Any, *arguments: Any) -> int | None:
    """Run a function in a fork of this process; return its status, or None after a timeout."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        status = 70
        try:
            with open(workplace / "output.txt", "wb") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            os.environ["PYTHONPATH"] = str(workplace)
            sys.path.insert(0, str(workplace))
            os.chdir(workplace / "splitarrow")
            status = function(workplace, *arguments) or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    deadline = time.monotonic() + seconds
    done = status = 0
    try:
        while not done and time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            time.sleep(0.02)
        return os.waitstatus_to_exitcode(status) if done else None
    finally:
        with contextlib.suppress(ProcessLookupError):  # What the tests left, or all of it.
            os.killpg(pid, signal.SIGKILL)
        if not done:
            os.waitpid(pid, 0)


def copy_repository(workplace: Path) -> None:
    """Copy the files that git knows into a folder that is first on the path of the tests."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others"]
    listed = subprocess.run([*command, "--exclude-standard"], check=True, capture_output=True)
    for name in listed.stdout.decode().rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            target = workplace / "splitarrow" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)


class Judge:
    """Decides whether the tests catch a change."""

    def __init__(self, workplace: Path, recorded: dict[str, Any]) -> None:
        self._workplace = workplace
        self.root = workplace / "splitarrow"
        """The copy of the repository."""
        self._lines = recorded["lines"]
        self._seconds = recorded["seconds"]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute a line: those of its own test module first."""
        lines, path = self._lines.get(mutant.file, {}), Path(mutant.file)
        names: set[str] = set()
        for line in range(mutant.line, mutant.line - STATEMENT_LINES, -1):
            names = set(lines.get(str(line), ()))
            if names:  # A line inside a statement may not count as executed.
                break
        if "" in names:  # It runs when the module is imported.
            names = {name for contexts in lines.values() for name in contexts}
            names |= {name for name in self._seconds if name.startswith(f"tests/{path.parent}/")}
        mirror = str("tests" / path.parent / f"test_{path.stem}")
        return sorted(
            names & self._seconds.keys(),
            key=lambda name: (not name.startswith(mirror), self._seconds[name]),
        )

    def is_caught(self, mutant: Mutant) -> bool:
        tests = self.tests_of(mutant)
        if not tests:
            return False
        path = self.root / mutant.file
        original = path.read_text()
        path.write_text(mutant.source)
        try:
            return any(map(self._fails, self._parts(tests)))
        finally:
            path.write_text(original)

    def _parts(self, tests: list[str]) -> Iterator[list[str]]:
        """Yield the first tests, and then the others as long as they are quick enough."""
        yield tests[:FIRST_TESTS]
        left = MAX_SECONDS
        rest: list[str] = []
        for test in tests[FIRST_TESTS:]:
            left -= self._seconds[test]
            if left < 0:
                break
            rest.append(test)
        yield rest

    def _fails(self, tests: list[str]) -> bool:
        if not tests:
            return False
        seconds = RUN_SECONDS + SLOWDOWN * sum(self._seconds[test] for test in tests)
        return in_child(self._workplace, seconds, run_tests, tests) != 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", default=PACKAGES, help="files and folders to change")
    parser.add_argument("--samples", type=int, default=200, help="the number of changes")
    parser.add_argument("--seed", type=int, default=0, help="selects the changes")
    parser.add_argument(
        "--only",
        type=int,
        nargs="*",
        help="plant only the changes with these numbers",
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--at-least", type=float, default=0, help="the percentage to require")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="the tests to run")
    parser.add_argument(
        "--lines",
        type=Path,
        help="keep what the tests execute in this file; the next run records changed tests only",
    )
    return parser.parse_args()


def main() -> None:
    """Plant changes, and exit with status 1 if too few of them are caught."""
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for name in PRELOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        workplace = Path(folder)
        copy_repository(workplace)
        if arguments.lines is None or not arguments.lines.exists():
            recorded = record_in_child(workplace, arguments.tests)
        else:
            recorded = json.loads(arguments.lines.read_text())
            current = hash_tests(workplace / "splitarrow", arguments.tests)
            changed = {m for m, digest in current.items() if recorded["modules"].get(m) != digest}
            if changed:
                new = record_in_child(workplace, sorted(changed))
                recorded = merge_records(recorded, new, changed)
        if arguments.lines is not None:
            arguments.lines.write_text(json.dumps(recorded))
        print(f"{len(recorded['seconds'])} tests, {len(recorded['failed'])} failed", flush=True)
        report(arguments, Judge(workplace, recorded))


def record_in_child(workplace: Path, tests: list[str]) -> dict[str, Any]:
    """Record what tests execute."""
    print("recording which test executes which line", flush=True)
    in_child(workplace, 3600, record, tests)
    recorded = workplace / "lines.json"
    if not recorded.exists():
        sys.exit((workplace / "output.txt").read_text())
    return json.loads(recorded.read_text())


def report(arguments: argparse.Namespace, judge: Judge) -> None:
    deadline = time.monotonic() + arguments.seconds
    number = planted = caught = equivalent = 0
    known = read_equivalent()
    packages, samples, seed = arguments.packages, arguments.samples, arguments.seed
    for mutant in choose_mutants(judge.root, packages, samples, seed):
        if time.monotonic() > deadline:
            break
        number += 1
        if arguments.only is not None and number not in arguments.only:
            continue
        if (mutant.file, mutant.code, mutant.change) in known:
            equivalent += 1
            continue
        planted += 1
        if judge.is_caught(mutant):
            caught += 1
        else:
            reason = "not caught" if judge.tests_of(mutant) else "not executed"
            print(f"{number}. {reason}: {mutant}\n    {mutant.code}", flush=True)
    percentage = 100 * caught / max(planted, 1)
    print(f"{caught} of {planted} changes caught: {percentage:.1f} %")
    print(f"{equivalent} more change nothing")
    sys.exit(percentage < arguments.at_least)


if __name__ == "__main__":
    main()
