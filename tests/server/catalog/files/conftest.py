"""Fixtures that record what is read."""

from __future__ import annotations

from typing import Any

import pytest

from splitarrow.server.catalog.files.parquet import FieldReader


@pytest.fixture
def selected(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The row groups that were selected to read fields of Variants, for each file."""
    found: list[list[int]] = []
    original = FieldReader.select_row_groups

    def record(reader: FieldReader, metadata: Any) -> list[int]:
        found.append(original(reader, metadata))
        return found[-1]

    monkeypatch.setattr(FieldReader, "select_row_groups", record)
    return found
