"""docs/reference.md lists every public name."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from helpers.package import ROOT

LISTED = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    "module",
    [
        "splitarrow",
        "splitarrow.aio",
        "splitarrow.pipeline",
        "splitarrow.pytorch",
        "splitarrow.testing",
    ],
)
def test_every_public_name_is_listed(module: str) -> None:
    exported = {f"{module}.{name}" for name in import_module(module).__all__}
    modules = {f"splitarrow.{name}" for name in ("__version__", "aio", "errors")}
    assert exported - modules <= set(LISTED)


@pytest.mark.parametrize("name", LISTED)
def test_every_listed_name_is_public(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert attribute in import_module(module).__all__
