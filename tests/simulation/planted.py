"""Defects to plant: whether the simulation finds them, and after how many seeds.

``python -m simulation.planted`` runs seeds with each defect of ``planted.toml`` until one fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple

_FILE = Path(__file__).with_suffix(".toml")
_FIRST_SEED = 1_000_000
"""The first seed that is tried, far from those of other runs."""


class Defect(NamedTuple):
    """A change of one place of the product."""

    name: str
    kind: str
    """One of the seven kinds; see README.md."""
    file: str
    old: str
    new: str


def load_defects() -> dict[str, Defect]:
    """Return the defects by name."""
    with open(_FILE, "rb") as file:
        found = [Defect(**each) for each in tomllib.load(file)["defects"]]
    return {defect.name: defect for defect in found}


def plant(name: str) -> None:
    """Let the product be imported with a defect. Call this before it is."""
    defect = load_defects()[name]
    get_code = SourceFileLoader.get_code

    def get_changed_code(self: SourceFileLoader, fullname: str) -> Any:
        path = os.path.realpath(self.path)
        if not path.endswith(f"/{defect.file}") or not fullname.startswith("splitarrow."):
            return get_code(self, fullname)
        source = Path(path).read_text()
        if source.count(defect.old) != 1:
            raise SystemExit(f"{name}: {defect.file} has the text {source.count(defect.old)} times")
        return compile(source.replace(defect.old, defect.new), path, "exec")

    SourceFileLoader.get_code = get_changed_code


class Search(NamedTuple):
    """The search for one defect."""

    name: str
    seeds: int | None = None
    """The number of seeds until one failed; None if the defect was not found."""
    text: str = ""
    """The error, or why there is no result."""


def find(name: str, seeds: int) -> Search:
    """Run seeds with a defect until one fails, which must not fail without it."""
    done = _simulate(f"--plant={name}", "--stop", str(_FIRST_SEED), str(_FIRST_SEED + seeds))
    lines = [line for line in done.stdout.splitlines() if line.startswith("seed ")]
    if not lines:
        return Search(name, text=f"cannot run: {done.stderr[-300:]}" if done.returncode else "")
    seed = int(lines[0].split()[1])
    if _simulate(str(seed), str(seed + 1)).returncode:
        return Search(name, text=f"the seed {seed} fails without the defect as well")
    return Search(name, seed - _FIRST_SEED + 1, lines[0].partition(": ")[2][:150])


def _simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simulation", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the defects, and print which are found."""
    parser = argparse.ArgumentParser(prog="python -m simulation.planted")
    parser.add_argument("names", nargs="*", help="the defects; all by default")
    parser.add_argument("--seeds", type=int, default=600, help="the seeds to try for each")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    defects = load_defects()
    names = options.names or list(defects)
    missed = 0
    with ThreadPoolExecutor(options.processes) as threads:
        for name, seeds, text in threads.map(lambda each: find(each, options.seeds), names):
            missed += seeds is None
            found = "missed" if seeds is None else f"seed {seeds}"
            print(f"{defects[name].kind:<22} {name:<44} {found:<9} {text}", flush=True)
    print(f"{len(names) - missed} of {len(names)} found")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
