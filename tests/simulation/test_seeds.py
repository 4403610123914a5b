"""Runs of the simulation repeat themselves, and the plans that have found a defect pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
FOUND = sorted(FOLDER.joinpath("found").glob("*.json"))


def simulate(
    *arguments: str, hash_seed: str = "0", cores: int | None = None, fails: bool = False
) -> str:
    """Run the simulation in a process of its own, and return what it prints."""
    code = "import runpy; runpy.run_module('simulation', run_name='__main__')"
    if cores is not None:
        chosen = sorted(os.sched_getaffinity(0))[:cores]
        code = f"import os; os.sched_setaffinity(0, {chosen}); {code}"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": str(FOLDER.parent), "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == fails, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("path", FOUND, ids=[path.stem for path in FOUND])
def test_a_plan_fails_only_with_the_defect_that_it_has_found(path: Path) -> None:
    assert "error: None" in simulate("--plan", str(path), "--raw")
    printed = simulate("--plan", str(path), "--raw", f"--plant={path.stem}", fails=True)
    assert "\nerror: " in printed
    assert "error: None" not in printed


def test_a_seed_gives_the_same_trace_with_other_hashes_and_cores() -> None:
    def list_traces(hash_seed: str, cores: int) -> list[str]:
        printed = simulate("0", "6", "--traces", hash_seed=hash_seed, cores=cores)
        return printed.splitlines()[:-1]

    traces = list_traces("1", 1)
    assert len({line.split()[1] for line in traces}) == 6
    assert list_traces("2", 2) == traces


IN_ORDER = """
from concurrent.futures import Future
from concurrent.futures._base import _AcquireFutures
from simulation import setup
from simulation.clock import World

setup.prepare()
World.current = World(0)
futures = [Future() for _ in range(100)]
del futures[::3]
futures += [Future() for _ in range(100)]  # some of them where others were
assert _AcquireFutures(futures[::-1]).futures == futures
"""


def test_the_order_of_futures_does_not_depend_on_their_addresses() -> None:
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent)}
    subprocess.run([sys.executable, "-c", IN_ORDER], env=environment, check=True)
