"""Plant changes in the code, one at a time, and report those that no test catches.

``make mutants`` runs it. The changes are planted in copies of the repository, one for each job. A
first run of the tests records which test executes which line, so each change is met by the tests of
its line alone: first by those in the test module that mirrors the changed one, then by those of its
folder, then by the others. A change of a line that no test executes is not caught. One that makes
the tests hang is. Whatever the tests start is ended with them.

``equivalent_mutants.toml`` lists changes that change nothing that a test could see, each with the
reason. They do not count.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Generator
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

from child_processes import adopt_orphans, end_descendants, in_child
from judging import MAX_SECONDS, Judge, Verdict
from planting import Mutant, choose_mutants
from recording import OPTIONS, hash_tests, merge_records, record, update_lines

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = [
    *("protocol", "formats", "transport", "client", "filters", "isolation", "memory"),
    *("publication", "cli", "server/*.py", "server/auth", "server/bodies", "server/catalog"),
    *("server/config", "server/control", "server/http", "server/shm", "server/uploads"),
]
"""Those that quick tests cover. The others are `pytorch` and `pipeline`."""
TESTS = [
    *("tests/protocol", "tests/formats", "tests/property", "tests/transport", "tests/contract"),
    *("tests/fault", "tests/client", "tests/filters", "tests/isolation", "tests/memory"),
    *("tests/publication", "tests/cli", "tests/server", "tests/e2e", "tests/test_errors.py"),
    "tests/test_examples.py",
]
PRELOADED = [
    *("pytest", "hypothesis", "pyarrow.compute", "pyarrow.flight", "numpy", "grpc", "anyio"),
    *("pydantic_settings", "joserfc", "structlog", "trustme", "typer", "rich.progress", "sqlglot"),
    *("starlette.applications", "uvicorn", "prometheus_client", "torch.utils.data"),
    *("anyio._backends._asyncio", "google.protobuf.descriptor_pb2", "pytest_asyncio.plugin"),
]
RECORDED_MODULES = 8
"""The number of test modules that a job records at a time."""
RECORD_SECONDS = 3600
EQUIVALENT = Path("tests", "equivalent_mutants.toml")
SNAPSHOT = "snapshot"
"""The folder with the repository as it was at the start, which the jobs copy."""


def read_equivalent(path: Path = ROOT / EQUIVALENT) -> set[tuple[str, str, str]]:
    """Return the changes that change nothing: their files, lines of code and descriptions."""
    listed = tomllib.loads(path.read_text())["equivalent"]
    return {(each["file"], each["code"], each["change"]) for each in listed if each["reason"]}


def copy_repository(workplace: Path) -> None:
    """Copy the files that git knows into a folder that is first on the path of the tests."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others"]
    listed = subprocess.run([*command, "--exclude-standard"], check=True, capture_output=True)
    for name in listed.stdout.decode().rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            target = workplace / "splitarrow" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)


class Job:
    """One of the processes that record and judge, each in a copy of the repository."""

    current: Job
    """That of this process."""

    def __init__(
        self, folder: Path, recorded: dict[str, Any], deadline: float, patience: float
    ) -> None:
        self._workplace = folder / str(os.getpid())
        self._judge = Judge(self._workplace, recorded, patience)
        self._deadline = deadline
        shutil.copytree(folder / SNAPSHOT, self._workplace)

    def record(self, modules: list[str]) -> dict[str, Any]:
        """Record what the tests of some modules execute."""
        recorded = self._workplace / "lines.json"
        recorded.unlink(missing_ok=True)
        in_child(self._workplace, RECORD_SECONDS, record, modules)
        if not recorded.exists():
            raise RuntimeError((self._workplace / "output.txt").read_text())
        return json.loads(recorded.read_text())

    def judge(self, number: int, mutant: Mutant) -> tuple[int, Verdict] | None:
        """Judge a change, unless it is too late."""
        if time.monotonic() > self._deadline:
            return None
        return number, self._judge.judge(mutant)


def start_job(*arguments: Any) -> None:
    adopt_orphans()
    signal.signal(signal.SIGTERM, stop_job)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Job.current = Job(*arguments)


def stop_job(*_: Any) -> None:
    """End at once, with all tests: an exception could be lost, and the job go on."""
    end_descendants()
    os._exit(1)


def record_in_job(modules: list[str]) -> dict[str, Any]:
    return Job.current.record(modules)


def judge_in_job(numbered: tuple[int, Mutant]) -> tuple[int, Verdict] | None:
    return Job.current.judge(*numbered)


@contextlib.contextmanager
def start_jobs(
    count: int,
    folder: Path,
    recorded: dict[str, Any],
    deadline: float = 0,
    patience: float = MAX_SECONDS,
) -> Generator[Pool]:
    """Start processes that each have a copy of the repository in a folder of their own."""
    context = multiprocessing.get_context("fork")
    with context.Pool(count, start_job, (folder, recorded, deadline, patience)) as jobs:
        yield jobs
        jobs.close()
        jobs.join()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", default=PACKAGES, help="files and folders to change")
    parser.add_argument("--samples", type=int, default=40, help="the number of changes in each")
    parser.add_argument("--seed", type=int, default=0, help="selects the changes")
    parser.add_argument("--jobs", type=int, default=2, help="the number of changes at a time")
    parser.add_argument(
        "--only", type=int, nargs="*", help="plant only the changes with these numbers"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    parser.add_argument(
        "--patience",
        type=float,
        default=MAX_SECONDS,
        help="the seconds of slower tests that each change is met by",
    )
    parser.add_argument("--at-least", type=float, default=0, help="the percentage to require")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="the tests to run")
    parser.add_argument("--markers", help="run tests with these markers instead of the quick ones")
    parser.add_argument(
        "--lines",
        type=Path,
        help="keep what the tests execute in this file; the next run records changed tests only",
    )
    parser.add_argument("--verbose", action="store_true", help="print the caught changes as well")
    return parser.parse_args()


def main() -> None:
    """Plant changes, and exit with status 1 if too few of them are caught."""
    arguments = parse_arguments()
    if arguments.markers is not None:
        OPTIONS.extend(("-m", arguments.markers))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mut-", ignore_cleanup_errors=True) as folder:
        copy_repository(Path(folder, SNAPSHOT))
        recorded = find_lines(arguments, Path(folder))
        print(f"{len(recorded['seconds'])} tests, {len(recorded['failed'])} failed", flush=True)
        report(arguments, Path(folder), recorded)


def find_lines(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return which test executes which line: from a file, as far as tests have not changed."""
    recorded: dict[str, Any] = {"lines": {}, "seconds": {}, "failed": []}
    recorded |= {"modules": {}, "sources": {}}
    root = folder / SNAPSHOT / "splitarrow"
    if arguments.lines is not None and arguments.lines.exists():
        recorded = update_lines(json.loads(arguments.lines.read_text()), root)
    current = hash_tests(root, arguments.tests)
    changed = sorted(m for m, digest in current.items() if recorded["modules"].get(m) != digest)
    if changed:
        print(f"recording which line {len(changed)} test modules execute", flush=True)
        parts = [
            changed[i : i + RECORDED_MODULES] for i in range(0, len(changed), RECORDED_MODULES)
        ]
        with start_jobs(arguments.jobs, folder, recorded) as jobs:
            for new in jobs.imap_unordered(record_in_job, parts):
                recorded = merge_records(recorded, new, set(new["modules"]))
    if arguments.lines is not None:
        arguments.lines.write_text(json.dumps(recorded))
    return recorded


def report(arguments: argparse.Namespace, folder: Path, recorded: dict[str, Any]) -> None:
    """Plant changes and print those that are not caught, and how many are in each package."""
    root = folder / SNAPSHOT / "splitarrow"
    mutants, packages, equivalent = select_mutants(arguments, root)
    deadline = time.monotonic() + arguments.seconds
    planted: Counter[str] = Counter()
    caught: Counter[str] = Counter()
    limits = deadline, arguments.patience
    with start_jobs(arguments.jobs, folder, recorded, *limits) as jobs:
        for number, verdict in filter(None, jobs.imap_unordered(judge_in_job, mutants)):
            mutant = verdict.mutant
            planted[packages[number]] += 1
            caught[packages[number]] += verdict.caught_by is not None
            if verdict.caught_by is None:
                reason = "not caught" if verdict.is_executed else "not executed"
                print(f"{number}. {reason}: {mutant}\n    {mutant.code}", flush=True)
            elif arguments.verbose:
                print(f"{number}. {mutant}\n    caught by {verdict.caught_by}", flush=True)
    for package in sorted(planted):
        counts = f"{caught[package]} of {planted[package]}"
        print(f"{package}: {counts}; {equivalent[package]} more change nothing")
    percentage = 100 * caught.total() / max(planted.total(), 1)
    print(f"{caught.total()} of {planted.total()} changes caught: {percentage:.1f} %")
    sys.exit(percentage < arguments.at_least)


def select_mutants(
    arguments: argparse.Namespace, root: Path
) -> tuple[list[tuple[int, Mutant]], dict[int, str], Counter[str]]:
    """Return the changes to plant, their packages, and how many others change nothing."""
    known = read_equivalent(root / EQUIVALENT)
    mutants: list[tuple[int, Mutant]] = []
    packages: dict[int, str] = {}
    equivalent: Counter[str] = Counter()
    samples, seed = arguments.samples, arguments.seed
    chosen = ((p, m) for p in arguments.packages for m in choose_mutants(root, p, samples, seed))
    for number, (package, mutant) in enumerate(chosen, 1):
        if arguments.only is None or number in arguments.only:
            packages[number] = package
            if (mutant.file, mutant.code, mutant.change) in known:
                equivalent[package] += 1
            else:
                mutants.append((number, mutant))
    return mutants, packages, equivalent


if __name__ == "__main__":
    main()
