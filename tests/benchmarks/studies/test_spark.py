"""The benchmark of Spark: its report, and the relay that counts bytes."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from splitarrow.benchmarks.studies import spark, spark_run
from splitarrow.benchmarks.studies.spark import BEGIN, END, list_goals, save_spark_markdown
from splitarrow.benchmarks.studies.spark_run import CountingRelay


def figures_of(parquet: float, column_bytes: int = 8_000_000) -> dict[str, Any]:
    """Return the figures of a run in which every job but Parquet takes a second."""
    jobs = (*spark_run.READS, *spark_run.WRITES)
    seconds = {job: [1.0, 1.0, 9.0] for job in jobs} | {spark_run.PARQUET: [parquet] * 3}
    return {
        "date": "2026-01-02",
        "machine": {"processor": "P", "threads": 2, "system": "Linux 6.1"},
        "versions": {"pyspark": "4.3.0"},
        "master": "local[2]",
        "rows": 8_000_000,
        "shards": 8,
        "rounds": 3,
        "seconds": seconds,
        "cpu_seconds": seconds,
        "check_workers": {"first": 2.0, "again": 0.5},
        "bytes": {
            "one column": {"control": 2000, "data": column_bytes, "column": 8_000_000},
            "count": {"control": 2000, "data": 0},
        },
        "memory": {
            "task_peak_bytes": 4 << 20,
            "task_limit_bytes": 1 << 30,
            "worker_peak_bytes": 300 << 20,
            "worker_own_bytes": 200 << 20,
        },
    }


def test_goals_compare_medians() -> None:
    found = {goal.name: goal for goal in list_goals(figures_of(1.3))}
    # The interval of a median of three covers the outlier.
    assert found["JVM reader over TCP / Spark's Parquet reader"].text == "1.30 (0.14–1.30)"
    missed = [goal.name for goal in found.values() if not goal.is_met]
    assert missed == ["JVM reader, mapped files / Spark's Parquet reader"]
    too_many = {goal.name: goal for goal in list_goals(figures_of(1.5, column_bytes=9_700_000))}
    assert [name for name, goal in too_many.items() if not goal.is_met] == [
        "1 of 20 columns: bytes transferred / bytes of that column"
    ]


def test_a_stopped_run_has_the_goals_of_its_figures() -> None:
    stopped = figures_of(1.5) | {"bytes": {}, "memory": {}, "check_workers": {}}
    stopped["seconds"] = {spark_run.PARQUET: [1.5], spark_run.MAPPED: [1.0]}
    (goal,) = list_goals(stopped)
    assert goal.text == "1.50 (1.50–1.50)"


def test_the_report_of_an_earlier_run_updates_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_text(json.dumps(figures_of(1.3)))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    command = ["--report", str(tmp_path / "run.json"), "--markdown", str(page)]
    assert spark.main(command) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| JVM reader, mapped files | 8.00 | 1.00 |" in text
    assert "| 1.30 (0.14–1.30) | at least 1.4 (missed) |" in text
    assert capsys.readouterr().out in text
    save_spark_markdown(figures_of(1.3), page, tmp_path / "images" / "spark.svg")
    assert "](images/spark.svg)" in page.read_text()
    (tmp_path / "run.json").write_text("nothing")
    assert spark.main(command) == 2


def test_the_relay_counts_both_directions() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client = server.accept()[0]
            with client:
                while data := client.recv(100):
                    client.sendall(2 * data)

        thread = threading.Thread(target=answer)
        thread.start()
        with CountingRelay(*server.getsockname()[:2]) as relay:
            with socket.create_connection(("127.0.0.1", relay.port)) as client:
                client.sendall(b"12345")
                client.shutdown(socket.SHUT_WR)
                found = b"".join(iter(lambda: client.recv(100), b""))
            assert found == b"1234512345"
            assert relay.nbytes == 15
        thread.join()
