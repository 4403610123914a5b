"""The report of a run: ratios, JSON, tables and the plot."""

from __future__ import annotations

import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from splitarrow import errors
from splitarrow.benchmarks import (
    Options,
    Report,
    backend_names,
    check_plot,
    comparison_table,
    save_markdown,
    save_plot,
    terminal_tables,
)
from splitarrow.benchmarks.__main__ import main
from splitarrow.benchmarks.machine import machine_properties, software_versions
from splitarrow.benchmarks.options import Consume
from splitarrow.benchmarks.report import ReadSample, Result, Section
from splitarrow.benchmarks.tables import (
    BEGIN,
    END,
    SUMMARY_BEGIN,
    SUMMARY_END,
    find_changes,
    markdown_tables,
)

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4 * KIB, MIB)


def make_result(
    section: Section,
    backend: str,
    size: int,
    clients: int,
    seconds: float,
    consume: Consume = "count",
) -> Result:
    in_process = backend in ("inproc", "memcpy")
    samples = [
        ReadSample(
            seconds=seconds * factor,
            first_batch_seconds=seconds / 10,
            client_cpu_seconds=0.5,
            server_cpu_seconds=None if in_process else 0.25,
            client_peak_bytes=100 * MIB,
            client_anonymous_bytes=40 * MIB,
            server_peak_bytes=None if in_process else 60 * MIB,
            server_anonymous_bytes=None if in_process else 50 * MIB,
        )
        for factor in (1, 0.5, 2)
    ]
    batches = 4 * MIB // size
    return Result(section, backend, size, batches, 4 * MIB // 32, clients, consume, samples)


@pytest.fixture(scope="module")
def report() -> Report:
    """A report in which splitarrow-tcp is twice (4 KiB) and eight times (1 MiB) as fast.

    When it sums, it is as fast as the others.
    """
    seconds = {"splitarrow-tcp": {4 * KIB: 1.0, MIB: 0.25}, "flight": {4 * KIB: 2.0, MIB: 2.0}}
    results = [
        make_result("sizes", name, size, 1, seconds.get(name, {}).get(size, 1.0))
        for size in SIZES
        for name in backend_names()
    ]
    results += [
        make_result("sizes", name, size, 1, 4.0, "sum")
        for size in SIZES
        for name in backend_names()
    ]
    results += [
        make_result("clients", name, MIB, clients, 1.0)
        for name in ("splitarrow-tcp", "flight")
        for clients in (1, 2)
    ]
    options = Options(batch_bytes=SIZES)
    return Report(
        created="2026-01-02T03:04:05+00:00",
        versions=software_versions(),
        machine=machine_properties(),
        options={"rounds": 3, "read": options.read, "consume": options.consume, "validate": None},
        skipped={"pigeon": "no pigeon"},
        results=results,
    )


def test_ratios_are_those_of_the_medians(report: Report) -> None:
    small, large = (report.find("splitarrow-tcp", size) for size in SIZES)
    assert small is not None
    assert large is not None
    assert (report.ratio(small), report.ratio(large)) == (2.0, 8.0)
    assert report.mean_ratio("splitarrow-tcp") == pytest.approx(4.0)
    assert report.mean_ratio("splitarrow-tcp", "sum") == pytest.approx(1.0)


def test_an_interval_is_that_of_the_ratios_of_each_round(report: Report) -> None:
    result = report.find("splitarrow-tcp", MIB)
    assert result is not None
    assert report.ratio_interval(result) == (8.0, 8.0), "all rounds vary alike"
    flight = report.find("flight", MIB)
    assert flight is not None
    assert report.ratio_interval(flight) is None


def test_processor_time_is_that_of_server_and_client_together(report: Report) -> None:
    result = report.find("splitarrow-tcp", MIB)
    assert result is not None
    assert result.cpu is not None
    assert result.cpu.median == pytest.approx(0.75 * 256)
    assert report.cpu_ratio(result) == 1.0


def with_seconds(report: Report, backend: str, factors: tuple[float, ...]) -> Report:
    """Return a report in which the reads of a backend took other times."""
    results = [
        replace(
            each,
            samples=[replace(each.samples[0], seconds=factor) for factor in factors],
        )
        if each.backend == backend
        else each
        for each in report.results
    ]
    return replace(report, results=results)


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        ((2.0, 2.1, 2.2, 2.1, 2.0), "slower"),
        ((0.5, 0.51, 0.5, 0.52, 0.5), "faster"),
        ((0.7, 1.4, 1.0, 1.1, 0.9), ""),
        ((0.995, 0.995, 0.995, 0.995, 0.995), ""),
    ],
)
def test_a_comparison_names_what_changed(
    report: Report, factors: tuple[float, ...], verdict: str
) -> None:
    before = with_seconds(report, "raw", (1.0, 1.01, 1.0, 0.99, 1.0))
    after = with_seconds(report, "raw", factors)
    changes = find_changes(before, after)
    assert len(changes) == len(report.results)
    found = {change.verdict for change in changes if change.later.backend == "raw"}
    assert found == {verdict}
    assert {change.ratio for change in changes if change.later.backend != "raw"} == {1.0}


def test_a_comparison_fits_a_terminal_and_leaves_out_what_one_run_lacks(report: Report) -> None:
    fewer = replace(report, results=[each for each in report.results if each.backend != "inproc"])
    file = StringIO()
    Console(file=file, width=80).print(comparison_table(fewer, with_seconds(report, "raw", (9.0,))))
    text = file.getvalue()
    assert "…" not in text
    assert "inproc" not in text
    assert "slower" in text
    assert "differ" not in text
    other = replace(report, machine={**report.machine, "threads": 1})
    Console(file=file, width=80).print(comparison_table(other, report))
    assert "The runs differ in their machine or their options." in file.getvalue()


def test_the_baseline_and_the_reference_have_no_ratio(report: Report) -> None:
    for name in ("flight", "memcpy"):
        result = report.find(name, MIB)
        assert result is not None
        assert report.ratio(result) is None
        assert report.mean_ratio(name) is None


def test_json_keeps_everything(report: Report) -> None:
    text = report.to_json()
    assert Report.from_json(text).to_json() == text
    assert Report.from_json(text).results == report.results


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', '{"format": 1}'])
def test_another_text_is_not_a_report(text: str) -> None:
    with pytest.raises(errors.UsageError):
        Report.from_json(text)


def test_the_table_fits_a_terminal(report: Report) -> None:
    file = StringIO()
    Console(file=file, width=80).print(terminal_tables(report))
    text = file.getvalue()
    assert "…" not in text
    assert all(name in text for name in report.backends())
    assert "skipped: pigeon: no pigeon" in text


def test_markdown_has_a_row_per_size(report: Report) -> None:
    lines = markdown_tables(report).splitlines()
    rows = [line for line in lines if line.startswith(("| 4 KiB |", "| 1 MiB |"))]
    assert len(rows) == 2 * len(SIZES) * (1 + len(report.backends()))
    widths = {line.count("|") for line in lines if line.startswith("|")}
    assert len(widths) <= 3, "the rows of a table have equally many cells"


def test_markdown_replaces_the_lines_between_the_markers(report: Report, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    save_markdown(report, page)
    once = page.read_text()
    assert once.startswith(f"before\n{BEGIN}\n")
    assert once.endswith(f"{END}\nafter\n")
    assert "old" not in once
    save_markdown(report, page)
    assert page.read_text() == once


def test_a_page_with_other_markers_gets_a_summary(report: Report, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{SUMMARY_BEGIN}\nold\n{SUMMARY_END}\nafter\n")
    saved = tmp_path / "report.json"
    saved.write_text(report.to_json())
    tables = tmp_path / "tables.md"
    assert main([str(saved), "--markdown", str(page), "--markdown", str(tables)]) == 0
    text = page.read_text()
    assert text.startswith(f"before\n{SUMMARY_BEGIN}\n\nA client that counts rows")
    assert text.endswith(f"{SUMMARY_END}\nafter\n")
    assert "All figures" not in text
    assert "| clients | backend | GB/s | × flight | first batch ms | CPU s/GiB | MiB |" in text
    assert tables.read_text() == markdown_tables(report)


def test_the_module_shows_an_earlier_run(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "report.json"
    saved.write_text(report.to_json())
    assert main([str(saved)]) == 0
    assert "splitarrow-tcp" in capsys.readouterr().out
    assert main([str(saved), "--markdown", str(tmp_path / "tables.md")]) == 0
    assert (tmp_path / "tables.md").read_text() == markdown_tables(report)
    assert main([str(saved), "--compare", str(saved)]) == 0
    assert "compared with the run of 2026-01-02" in capsys.readouterr().out
    assert main([str(saved), "--compare", str(tmp_path / "none.json")]) == 2
    assert "none.json: No such file" in capsys.readouterr().err
    saved.write_text("nothing")
    assert main([str(saved)]) == 2
    assert main([str(tmp_path / "absent.json")]) == 2


@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_the_plot_is_an_image(report: Report, tmp_path: Path, suffix: str, magic: bytes) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot{suffix}"
    save_plot(report, path)
    assert path.read_bytes().startswith(magic)


def test_a_plot_needs_a_known_suffix_and_a_folder(report: Report, tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match=r"\.svg or \.png"):
        save_plot(report, tmp_path / "plot.bmp")
    with pytest.raises(errors.UsageError, match="does not exist"):
        check_plot(tmp_path / "absent" / "plot.svg")


def test_a_plot_without_matplotlib_names_the_extra(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(errors.MissingExtraError, match=r"splitarrow\[bench\]"):
        save_plot(report, tmp_path / "plot.svg")
