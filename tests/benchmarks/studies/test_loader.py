"""The benchmark of PyTorch's loaders, with few rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from splitarrow import errors
from splitarrow.benchmarks.statistics import UNKNOWN
from splitarrow.benchmarks.studies import loader
from splitarrow.benchmarks.studies.loader_peers import (
    BATCH_ROWS,
    KINDS,
    PEERS,
    ROW,
    SHARDS,
    Peer,
    add_checksums,
    batches_of,
    checksum,
    make_shards,
)
from splitarrow.benchmarks.studies.loader_report import (
    BEGIN,
    END,
    OURS,
    LoaderReport,
    LoaderResult,
    markdown_lines,
    save_plot,
)
from splitarrow.benchmarks.studies.loader_round import Round, run_process, run_round

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
    resumed = run_round(Round("resume", name, 0, place, ROWS, 0))
    assert resumed["checksum"] == expected_checksum()
    assert resumed["replays"]
    assert resumed["resume_seconds"] > 0 < resumed["first_seconds"]
    figures = run_round(Round("cold", name, 0, place, ROWS, 0))
    assert figures["rows_per_second"] > 0
    with pytest.raises(AssertionError, match=f"had {ROWS} rows; expected {ROWS + 1}"):
        run_round(Round("warm", name, 0, place, ROWS + 1, 0))


def test_a_loader_resumes_from_its_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader of this test yields all batches but those that its state counts."""
    batches = [batch for shard in make_shards(ROWS) for batch in batches_of(shard)]

    class Loader:
        def __init__(self, *_: object) -> None:
            self.done = 0

        def __iter__(self) -> Iterator[Any]:
            return iter(batches[self.done :])

    peer = PEERS["pyarrow.dataset, Arrow"]
    states: list[int] = []

    def save(_: Loader, steps: int) -> int:
        states.append(steps)
        return steps

    def load(loader: Loader, state: int) -> None:
        loader.done = state

    monkeypatch.setitem(PEERS, "states", replace(peer, open=Loader, save=save, load=load))
    work = Round("resume", "states", 0, str(tmp_path), ROWS, 0)
    resumed = run_round(work)
    assert (resumed["checksum"], resumed["replays"]) == (expected_checksum(), False)
    assert states == [SHARDS // 2]
    # A state that leaves a batch out shows in the checksum.
    monkeypatch.setitem(
        PEERS, "states", replace(peer, open=Loader, save=lambda _, n: n + 1, load=load)
    )
    assert run_round(work)["checksum"] != expected_checksum()


def make_arguments(*more: str) -> list[str]:
    arguments = ["--rows", str(ROWS), "--rounds", "1", "--seconds", "0", "--workers", "0"]
    return [*arguments, "--peers", "pyarrow.dataset, Arrow", *more]


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[Round]:
    """Return the rounds from now on. They run in this process: importing PyTorch takes longer."""
    found: list[Round] = []

    def run(work: Round, **_: object) -> tuple[dict[str, Any], int]:
        found.append(work)
        return run_round(work), 1 << 20

    monkeypatch.setattr(loader, "run_process", run)
    return found


@pytest.mark.usefixtures("rounds")
def test_the_command_prints_each_loader_and_names_those_that_are_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrow = PEERS["pyarrow.dataset, Arrow"]
    monkeypatch.setitem(PEERS, "absent", Peer("absent_package", "no", arrow.write, arrow.open))
    report, page, plot = (tmp_path / name for name in ("report.json", "page.md", "images/plot.svg"))
    plot.parent.mkdir()
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert loader.main(make_arguments("absent", "--json", str(report))) == 0
    output = capsys.readouterr().out
    for name in (*OURS, "pyarrow.dataset, Arrow"):
        assert f"| 0 | {name} |" in output
    replays = [line.endswith(" (replay) |") for line in output.splitlines() if line[:3] == "| 0"]
    assert replays == [False, False, True]
    assert "- splitarrow, shm, 0 workers, warm: " in output
    assert "- Not measured: absent: the package absent_package is not installed" in output
    # The table and the plot follow from the file alone.
    pytest.importorskip("matplotlib")
    files = ["--report", str(report), "--markdown", str(page), "--plot", str(plot)]
    assert loader.main(files) == 0
    assert capsys.readouterr().out == output
    image = "![Rows per second of each loader](images/plot.svg)"
    assert page.read_text() == f"before\n{BEGIN}\n\n{image}\n\n{output}\n{END}\nafter\n"
    assert all(name in plot.read_text() for name in OURS)


def test_each_round_is_saved_when_it_ends(
    tmp_path: Path, rounds: list[Round], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[LoaderReport] = []
    path = tmp_path / "report.json"

    def stop(*_: object) -> bool:
        if path.exists():
            saved.append(LoaderReport.load(path))
        if len(rounds) == 7:
            raise KeyboardInterrupt
        return True

    monkeypatch.setattr(loader, "drop_from_page_cache", stop)
    with pytest.raises(KeyboardInterrupt):
        loader.main(make_arguments("--json", str(path)))
    report = LoaderReport.load(path)
    assert [work.kind for work in rounds] == ["check"] * 3 + ["warm"] * 3 + ["cold"]
    found = {each.loader: (list(each.rates), list(each.cpu)) for each in report.results}
    assert found["splitarrow, shm"] == (["warm", "cold"],) * 2
    assert found["splitarrow, tcp"] == (["warm"],) * 2
    assert {each.peak_bytes for each in report.results} == {1 << 20}
    assert [len(each.results) for each in saved] == [3, 3]
    for line in markdown_lines(report):
        if line.startswith("| 0 | splitarrow, tcp"):
            assert line.endswith(f"| {UNKNOWN} | 1 | {UNKNOWN} | {UNKNOWN} |")


def test_no_round_starts_after_the_time(
    tmp_path: Path, rounds: list[Round], capsys: pytest.CaptureFixture[str]
) -> None:
    assert loader.main(make_arguments("--minutes", "1e-9")) == 0
    assert not rounds
    assert "the time is over" in capsys.readouterr().err
    assert loader.main(["--minutes", "0"]) == 2


@pytest.mark.parametrize("text", ["{}", "[]", "no", '{"format": 1, "kind": "other"}'])
def test_another_file_is_not_a_report(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text(text)
    assert loader.main(["--report", str(tmp_path / "x.json")]) == 2
    assert "report" in capsys.readouterr().err


def make_report(*results: LoaderResult) -> LoaderReport:
    machine = {"processor": "P", "threads": 2, "system": "S"}
    return LoaderReport(100, "2026-01-02T03:04:05", {"python": "3"}, machine, {}, [*results])


def test_the_table_compares_with_the_fastest_peer() -> None:
    ours = LoaderResult(OURS[0], 2, 5 << 20, {"warm": [3e6, 5e6, 4e6]}, {"warm": [0.1, 0.3, 0.2]})
    ours.first, ours.resume = [0.02], [0.03]
    fast = LoaderResult("fast", 2, 7 << 20, {"warm": [1e6]}, {"warm": [0.5]})
    slow = LoaderResult("slow", 2, 7 << 20, {"warm": [0.5e6]}, {"warm": [0.4]})
    lines = markdown_lines(make_report(fast, slow, ours))
    assert lines[-4:] == [
        "",
        "- splitarrow, shm, 2 workers, warm: 4.00 times as fast as fast (goal: 3.00, met).",
        "",
        "Measured 2026-01-02; P, 2 threads; S; python 3; 100 rows; rounds: 1 to 3.",
    ]
    assert lines[4] == "| 2 | splitarrow, shm | 4.00 | 200 | – | 5 | 20.0 | 30.0 |"
    ours.rates["warm"] = [2.9e6]
    assert any(
        "2.90 times" in line and "not met" in line
        for line in markdown_lines(make_report(fast, ours))
    )


def test_a_peer_that_cannot_resume_keeps_its_other_figures(
    tmp_path: Path, rounds: list[Round], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "pyarrow.dataset, Arrow"

    def forget(*_: object) -> None:
        """Save nothing, and load nothing: the loader begins again."""

    monkeypatch.setitem(PEERS, name, replace(PEERS[name], save=forget, load=forget))
    monkeypatch.setattr(loader, "OURS", ())
    benchmark = loader.Benchmark(tmp_path, ROWS, 1, 0)
    benchmark.run((0,), (name,))
    assert rounds[-1].kind == "resume"
    reason = f"{name} delivered other rows than were written"
    assert benchmark.report.skipped == {f"{name}, 0 workers, resume": reason}
    found = benchmark.report.find(name, 0)
    assert found is not None
    assert list(found.rates) == ["warm", "cold"]
    assert not found.resume


def test_a_report_without_warm_rounds_has_no_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(errors.UsageError, match="no warm round"):
        save_plot(make_report(LoaderResult(OURS[0], 0, 1)), tmp_path / "x.svg")


def test_a_round_is_a_process_whose_last_line_is_its_error(tmp_path: Path) -> None:
    PEERS["pyarrow.dataset, Arrow"].write(tmp_path / "rows", ROWS)
    place = str(tmp_path / "rows")
    work = Round("check", "pyarrow.dataset, Arrow", 0, place, ROWS, 0)
    result, peak_bytes = run_process(work, sample=True)
    assert result["checksum"] == expected_checksum()
    assert peak_bytes > 10 << 20
    work = Round("check", "pyarrow.dataset, Arrow", 0, str(tmp_path / "absent"), ROWS, 0)
    with pytest.raises(errors.SplitArrowError, match=r"FileNotFoundError: .*absent"):
        run_process(work, sample=False)


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
