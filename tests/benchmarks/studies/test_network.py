"""The tables of the benchmark over an emulated link. tests/network covers the link itself."""

from __future__ import annotations

import pytest

from splitarrow.benchmarks.studies.network import Figure, jain_index, markdown_tables

CELL = {"delay": 20, "loss": 0.001, "control": "bbr", "size": 1 << 20}


def test_the_index_is_one_for_equal_rates_and_falls_with_differences() -> None:
    assert jain_index([3.0, 3.0, 3.0, 3.0]) == 1
    assert jain_index([121, 29, 25, 2]) == pytest.approx(0.49, abs=0.01)
    assert jain_index([5.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain_index([0.0, 0.0]) == 1


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    figures = [
        Figure("throughput", CELL, "plain sockets", [100e6, 100e6, 100e6]),
        Figure("throughput", CELL, "Flight", [100e6, 50e6, 80e6]),
        Figure("throughput", CELL, "tcp", [50e6, 50e6, 40e6]),
    ]
    row = markdown_tables(figures).splitlines()[-2]
    assert row.startswith("| 20 ms | 0.1 % | bbr | 1 MiB | 0.80 | 0.64 | 0.40 | 0.50 (0.50–1.00) |")
    assert row.endswith("| – | – | – |"), "what was not measured is unknown"


def test_round_trips_are_those_of_the_calmest_round() -> None:
    figures = [
        Figure("round-trips", {"state": "cold"}, "Flight", [5, 4]),
        Figure("round-trips", {"state": "warm"}, "Flight", [2, 2]),
    ]
    assert "| Flight | 4 | 2 |" in markdown_tables(figures)


def test_auto_is_compared_with_the_best_fixed_choice() -> None:
    case = {"rate": 1000.0, "kind": "URLs"}
    rates = {"none": 100e6, "lz4": 200e6, "zstd": 150e6, "auto": 180e6}
    formats = {"arrow": 100e6, "vortex": 50e6, "auto": 75e6}
    figures = [Figure("compression", case, f"compression {k}", [v]) for k, v in rates.items()]
    figures += [Figure("compression", case, f"format {k}", [v]) for k, v in formats.items()]
    assert "| 1 Gbit/s | URLs | 100 | 200 | 150 | 180 | 0.90 | 50 | 0.75 |" in markdown_tables(
        figures
    )
