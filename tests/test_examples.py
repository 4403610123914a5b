"""The examples of docstrings run as they are typed. Those of pages are in tests/docs."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.package import ROOT, source_files

PROMPT = re.compile(r"^ *>>> ", re.MULTILINE)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("splitarrow", *parts)).removesuffix(".__init__")


MODULES = [module_name(path) for path in source_files() if PROMPT.search(path.read_text())]


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each example in a folder with the files that examples name."""
    monkeypatch.chdir(tmp_path)
    table = pa.table({"n": range(1000), "delay": [n % 90 for n in range(1000)]})
    for name in ("flights", "trips"):
        with pa.ipc.new_file(f"{name}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=250)
    pq.write_table(table, "scores.parquet")


def run(test: doctest.DocTest) -> int:
    """Run the examples of one docstring; return how many there are."""
    failures: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=failures.append, clear_globs=False)
    assert not failures, "".join(failures)
    return len(test.examples)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name: str) -> None:
    module = import_module(name)
    found = doctest.DocTestFinder(exclude_empty=True).find(module)
    assert sum(run(test) for test in found) > 0
