"""The benchmark of PyTorch's loaders, with few rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from splitarrow import errors
from splitarrow.benchmarks import loader
from splitarrow.benchmarks.loader_peers import PEERS, Peer
from splitarrow.benchmarks.loader_round import Round, run_round
from splitarrow.benchmarks.loader_rows import (
    BATCH_ROWS,
    KINDS,
    ROW,
    SHARDS,
    add_checksums,
    batches_of,
    checksum,
    make_shards,
)

pytestmark = pytest.mark.torch
ROWS = SHARDS * BATCH_ROWS


def expected_checksum() -> dict[str, float]:
    total: dict[str, float] = {}
    for shard in make_shards(ROWS):
        total = add_checksums(total, checksum(shard))
    return total


def test_the_checksum_notices_a_row_put_together_from_two() -> None:
    shard = next(make_shards(2 * ROWS))
    parts: dict[str, float] = {}
    for batch in reversed([*batches_of(shard)]):
        parts = add_checksums(parts, checksum(batch))
    assert parts == checksum(shard)
    for name in KINDS:
        swapped = {key: values.copy() for key, values in shard.items()}
        swapped[name][0], swapped[name][1] = shard[name][1] + 1, shard[name][0]
        assert checksum(swapped)[name] != parts[name]


@pytest.mark.parametrize("name", ["pyarrow.dataset, Arrow", "pyarrow.dataset, Parquet"])
def test_a_peer_delivers_the_rows_that_were_written(name: str, tmp_path: Path) -> None:
    PEERS[name].write(tmp_path / "rows", ROWS)
    place = str(tmp_path / "rows")
    found = run_round(Round("check", name, 0, place, ROWS, 0))
    assert found == {"checksum": expected_checksum(), "batch_rows": [BATCH_ROWS]}
    figures = run_round(Round("cold", name, 0, place, ROWS, 0))
    assert figures["rows_per_second"] > 0
    with pytest.raises(AssertionError, match=f"had {ROWS} rows; expected {ROWS + 1}"):
        run_round(Round("warm", name, 0, place, ROWS + 1, 0))


def test_the_command_prints_each_loader_and_names_those_that_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # In this process: importing PyTorch takes longer than the rounds.
    monkeypatch.setattr(loader, "run_process", lambda work, **_: (run_round(work), 1 << 20))
    arrow = PEERS["pyarrow.dataset, Arrow"]
    monkeypatch.setitem(PEERS, "absent", Peer("absent_package", "no", arrow.write, arrow.open))
    arguments = ["--rows", str(ROWS), "--rounds", "1", "--seconds", "0", "--workers", "0"]
    arguments += ["--peers", "pyarrow.dataset, Arrow", "absent"]
    assert loader.main([*arguments, "--json", str(tmp_path / "figures.json")]) == 0
    output = capsys.readouterr().out
    for name in (*loader.OURS, "pyarrow.dataset, Arrow"):
        assert f"| 0 | {name} |" in output
    assert "- splitarrow, shm, 0 workers, warm: " in output
    assert "- Not measured: absent: the package absent_package is not installed" in output
    rounds = json.loads((tmp_path / "figures.json").read_text())
    assert [len(each["rates"][kind]) for each in rounds for kind in ("warm", "cold")] == [1] * 6


def test_a_round_is_a_process_whose_last_line_is_its_error(tmp_path: Path) -> None:
    PEERS["pyarrow.dataset, Arrow"].write(tmp_path / "rows", ROWS)
    place = str(tmp_path / "rows")
    work = Round("check", "pyarrow.dataset, Arrow", 0, place, ROWS, 0)
    result, peak_bytes = loader.run_process(work, sample=True)
    assert result["checksum"] == expected_checksum()
    assert peak_bytes > 10 << 20
    work = Round("check", "pyarrow.dataset, Arrow", 0, str(tmp_path / "absent"), ROWS, 0)
    with pytest.raises(errors.SplitArrowError, match=r"FileNotFoundError: .*absent"):
        loader.run_process(work, sample=False)


@pytest.mark.parametrize("arguments", [["--rows", "5"], ["--rounds", "0"], ["--workers", "-1"]])
def test_wrong_arguments_are_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert loader.main(arguments) == 2
    assert "must be" in capsys.readouterr().err


def test_a_loader_that_repeats_a_row_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = loader.Benchmark(tmp_path, ROWS, 1, 0)
    total = expected_checksum()
    monkeypatch.setattr(
        loader, "run_process", lambda *_, **__: ({"checksum": {**total, ROW: 0.0}}, 0)
    )
    with pytest.raises(errors.SplitArrowError, match="delivered other rows"):
        benchmark.run((0,), ())
