"""The comparison of DoGet and DoPut with pyarrow.flight runs, and names every row."""

from __future__ import annotations

import sys

import pytest

from splitarrow.benchmarks.studies import flight


@pytest.mark.slow
def test_every_row_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["flight", "--rounds", "1", "--total", str(32 << 20)])
    monkeypatch.setattr(flight, "_CLIENTS", (1, 2))
    flight.main()
    labels = [line[:28].rstrip() for line in capsys.readouterr().out.splitlines()]
    assert labels == [
        "DoGet, 64 KiB, 1 client",
        "DoGet, 8 MiB, 1 client",
        "DoPut, 64 KiB",
        "DoPut, 8 MiB",
        "DoGet, 64 KiB, 2 clients",
        "DoGet, 8 MiB, 2 clients",
    ]
