"""The files of the package under test."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_OUTSIDE = {"build", "deploy", "dist", "docs", "examples", "site", "tests"}
# Modules that are installed beside the package, not in it.
_BESIDE = {"pyspark_splitarrow.py"}


def source_files() -> Iterator[Path]:
    """Yield every Python file of the package."""
    for path in sorted(ROOT.rglob("*.py")):
        first = path.relative_to(ROOT).parts[0]
        if first not in _OUTSIDE | _BESIDE and not first.startswith("."):
            yield path


def copy_sources(folder: Path) -> None:
    """Copy what a build needs: the files that git lists, without documentation and tests."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("docs/", "tests/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
