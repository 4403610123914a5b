"""A tiny run over all backends: what it reports, not how fast it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from splitarrow import errors
from splitarrow.benchmarks import Options, Report, backend_names, check_plot, run, runner
from splitarrow.benchmarks.__main__ import main
from splitarrow.benchmarks.tables import BEGIN, END

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4 * KIB, MIB)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def told() -> list[tuple[int, int, str]]:
    return []


@pytest.fixture(scope="module")
def report(folder: Path, told: list[tuple[int, int, str]]) -> Report:
    options = Options(batch_bytes=SIZES, rounds=1, total_bytes=4 * MIB, clients=2, directory=folder)
    return run(options, lambda *what: told.append(what))


def test_every_backend_and_size_has_its_figures(report: Report) -> None:
    assert report.batch_sizes() == list(SIZES)
    assert report.backends() == [name for name in backend_names() if name not in report.skipped]
    assert {"splitarrow-tcp", "splitarrow-tcp-async", "inproc", "raw"} <= set(report.backends())
    for name in report.backends():
        for size in SIZES:
            result = report.find(name, size)
            assert result is not None
            assert result.bytes == 4 * MIB
            assert result.rows == 4 * MIB // 32
            assert len(result.samples) == 1
            assert result.rate.median > 0
            assert result.first_batch is not None
            assert (result.server_cpu is None) == (name in ("inproc", "memcpy"))


def test_ratios_are_those_of_the_medians(report: Report) -> None:
    if "flight" not in report.backends():
        pytest.skip("this build of pyarrow has no Flight")
    ratios = []
    for size in SIZES:
        own, peer = report.find("splitarrow-tcp", size), report.find("flight", size)
        assert own is not None
        assert peer is not None
        ratio = report.ratio(own)
        assert ratio == own.rate.median / peer.rate.median
        assert report.ratio(peer) is None
        ratios.append(ratio)
    assert report.mean_ratio("splitarrow-tcp") == pytest.approx((ratios[0] * ratios[1]) ** 0.5)
    assert report.mean_ratio("flight") is None
    assert report.mean_ratio("memcpy") is None


def test_several_clients_are_counted_together(report: Report) -> None:
    counts = [(r.backend, r.clients, r.bytes) for r in report.of("clients")]
    assert ("splitarrow-tcp", 1, MIB) in counts
    assert ("splitarrow-tcp", 2, 2 * MIB) in counts


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of memory in /proc")
def test_memory_is_known(report: Report) -> None:
    result = report.find("splitarrow-tcp", MIB)
    assert result is not None
    for field in ("client_peak_bytes", "client_anonymous_bytes", "server_peak_bytes"):
        assert (result.most(field) or 0) > MIB
    assert 0 < (result.most("server_anonymous_bytes") or 0) < 300 * MIB


def test_progress_is_told_to_the_end(report: Report, told: list[tuple[int, int, str]]) -> None:
    reads = [what for what in told if "round" in what[2] or "warm-up" in what[2]]
    total = told[-1][1]
    assert [done for done, _, _ in reads] == list(range(total))


def test_nothing_is_left(report: Report, folder: Path) -> None:
    assert list(folder.iterdir()) == []
    children = psutil.Process().children(recursive=True)
    assert [
        child for child in children if "splitarrow.benchmarks" in " ".join(child.cmdline())
    ] == []


def test_json_keeps_everything(report: Report) -> None:
    text = report.to_json()
    assert Report.from_json(text).to_json() == text
    assert Report.from_json(text).results == report.results
    plain = json.loads(text)
    assert set(plain["versions"]) >= {"python", "pyarrow", "splitarrow"}
    assert os.uname().nodename not in json.dumps(plain["machine"])
    assert "directory" not in plain["options"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', '{"format": 1}'])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(errors.UsageError):
        Report.from_json(text)


def test_the_table_fits_a_terminal(report: Report) -> None:
    file = StringIO()
    Console(file=file, width=80).print(report.to_table())
    text = file.getvalue()
    assert "…" not in text
    assert all(name in text for name in report.backends())


def test_markdown_has_a_row_for_each_size(report: Report) -> None:
    lines = report.to_markdown().splitlines()
    rows = [line for line in lines if line.startswith(("| 4 KiB |", "| 1 MiB |"))]
    assert len(rows) == len(SIZES) * (1 + len(report.backends()))
    tables = [line.count("|") for line in lines if line.startswith("|")]
    assert len(set(tables)) <= 2, "rows of one table have as many cells"


def test_markdown_replaces_what_is_between_the_marks(report: Report, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    report.save_markdown(page)
    once = page.read_text()
    assert once.startswith(f"before\n{BEGIN}\n")
    assert once.endswith(f"{END}\nafter\n")
    assert "old" not in once
    report.save_markdown(page)
    assert page.read_text() == once


def test_an_earlier_run_is_shown_again(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "report.json"
    saved.write_text(report.to_json())
    assert main([str(saved)]) == 0
    assert "splitarrow-tcp" in capsys.readouterr().out
    assert main([str(saved), "--markdown", str(tmp_path / "tables.md")]) == 0
    assert (tmp_path / "tables.md").read_text() == report.to_markdown()
    saved.write_text("nothing")
    assert main([str(saved)]) == 2
    assert main([str(tmp_path / "absent.json")]) == 1


@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_the_plot_is_a_picture(report: Report, tmp_path: Path, suffix: str, magic: bytes) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot{suffix}"
    report.plot(path)
    assert path.read_bytes().startswith(magic)


def test_a_plot_of_another_kind_is_refused(report: Report, tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match=r"\.svg or \.png"):
        report.plot(tmp_path / "plot.bmp")
    with pytest.raises(errors.UsageError, match="no folder"):
        check_plot(tmp_path / "absent" / "plot.svg")


def test_without_matplotlib_the_extra_is_named(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(errors.MissingExtraError, match=r"splitarrow\[bench\]"):
        report.plot(tmp_path / "plot.svg")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch_bytes": ()}, "one batch size"),
        ({"batch_bytes": (100,)}, "multiple of 32"),
        ({"total_bytes": 4 * KIB}, "holds no batch"),
        ({"rounds": 0}, "one counted round"),
        ({"clients": 0}, "from 1 to 256"),
        ({"backends": ()}, "one backend"),
        ({"consume": "eat"}, "count or sum"),
        ({"read": "half"}, "iterate or all"),
        ({"validate": "twice"}, "full, cheap or off"),
        ({"timeout": 0}, "more than 0"),
        ({"directory": Path("/nowhere")}, "no folder"),
    ],
)
def test_impossible_options_are_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(errors.UsageError, match=said):
        Options(**change)  # type: ignore[arg-type]


def test_an_unknown_backend_is_named(folder: Path) -> None:
    with pytest.raises(errors.UsageError, match="'pigeon'; there are splitarrow-tcp"):
        run(Options(backends=("pigeon",), directory=folder))


def test_sums_and_whole_tables(folder: Path) -> None:
    options = Options(
        batch_bytes=(64 * KIB,),
        backends=("splitarrow-tcp", "raw"),
        rounds=1,
        total_bytes=MIB,
        clients=1,
        consume="sum",
        read="all",
        validate="full",
        directory=folder,
    )
    report = run(options)
    assert [result.section for result in report.results] == ["sizes", "sizes"]
    assert report.mean_ratio("raw") is None, "there is no Flight to compare with"


def test_room_for_the_data_is_checked(folder: Path) -> None:
    with pytest.raises(errors.DatasetError, match="has room for"):
        run(Options(batch_bytes=(MIB,), total_bytes=1 << 50, directory=folder))
    assert list(folder.iterdir()) == []


def test_a_server_that_dies_is_an_error_and_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = runner._Case.measure

    def kill_first(case: runner._Case, timeout: float, *, check: bool) -> object:
        if not check:
            assert case.server is not None
            psutil.Process(case.server.pid).kill()
        return measure(case, timeout, check=check)

    monkeypatch.setattr(runner._Case, "measure", kill_first)
    options = Options(
        batch_bytes=(MIB,), backends=("raw",), total_bytes=MIB, clients=1, directory=folder
    )
    with pytest.raises(errors.SplitArrowError, match="the server of raw ended with signal 9"):
        run(options)
    assert list(folder.iterdir()) == []
    assert psutil.Process().children(recursive=True) == []


def test_an_interrupt_leaves_nothing(folder: Path) -> None:
    script = f"""if True:
        import sys
        from pathlib import Path
        from splitarrow.benchmarks import Options, run
        options = Options(batch_bytes=(4096,), backends=("raw",), rounds=10**6,
                          total_bytes=1 << 20, directory=Path({str(folder)!r}))
        def show(done, total, what):
            if done == 3:
                print("running", flush=True)
        run(options, show)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 2
        process.send_signal(2)
        process.wait(20)
    assert process.returncode == -2
    assert list(folder.iterdir()) == []
    deadline = time.monotonic() + 10
    while any(child.is_running() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(child.is_running() for child in children)
