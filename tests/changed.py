"""Print the tests of the files that differ from a revision, each ended by NUL, for ``make check``.

The files compared are those of the working tree, new ones included.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALWAYS = {"tests/test_architecture.py", "tests/test_examples.py", "tests/contract"}
# A change in one of these folders may break any test, and so may one at the root.
FOUNDATIONS = {"fbs", "formats", "proto", "protocol", "transport"}


def changed_files(base: str) -> list[str]:
    """Return the files that differ from the commit at which HEAD left `base`."""
    fork = git("merge-base", base, "HEAD")[0]
    return git("diff", "--name-only", fork) + git("ls-files", "--others", "--exclude-standard")


def git(*arguments: str) -> list[str]:
    """Return the lines that a git command prints."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def tests_of(file: str) -> str | None:
    """Return the tests that mirror a file: a test module, a folder, or None."""
    path = Path(file)
    if path.parts[0] == "tests":
        if path.name.startswith("test_") and path.suffix == ".py":
            return file if (ROOT / path).is_file() else None
        return "tests" if path.parts[1] == "helpers" else str(path.parent)
    if len(path.parts) == 1:
        return "tests" if path.suffix in (".py", ".toml", ".lock") else None
    if path.parts[0] in FOUNDATIONS:
        return "tests"
    mirrors = (Path("tests", folder) for folder in path.parents if folder.parts)
    return next((str(mirror) for mirror in mirrors if (ROOT / mirror).is_dir()), None)


def main() -> None:
    """Print the tests of what differs from the revision that the command line names."""
    found = {tests for file in changed_files(sys.argv[1]) if (tests := tests_of(file))}
    chosen = {"tests"} if "tests" in found else found | ALWAYS
    sys.stdout.write("".join(f"{tests}\0" for tests in sorted(chosen)))


if __name__ == "__main__":
    main()
