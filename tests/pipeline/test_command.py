"""``splitarrow publish``: its output, its exit status, and spark-submit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from splitarrow.cli.app import run
from splitarrow.pipeline.submit import SCRIPT

pytestmark = pytest.mark.slow


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "trips.parquet"
    pq.write_table(pa.table({"id": range(100), "fare": [float(n) for n in range(100)]}), path)
    return str(path)


@pytest.fixture
def publish(spark, monkeypatch, capsys):
    """Run the command in the shared session; return its status, output and errors."""
    monkeypatch.setattr(type(spark), "stop", lambda session: None)

    def publish(*arguments):
        status = run(["publish", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return publish


def publish_in_new_process(*arguments, launcher=(sys.executable, "-m", "splitarrow", "publish")):
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        [*launcher, *arguments], capture_output=True, text=True, timeout=200, env=environment
    )


def test_the_results_are_json_and_the_summary_goes_to_standard_error(publish, source, tmp_path):
    folder = str(tmp_path / "sets")
    status, out, err = publish(source, "trips", "--to", folder, "--filter", "id < 60", "--json")
    assert status == 0, err
    (result,) = json.loads(out)
    assert (result["dataset"], result["rows"], result["version"]) == ("trips", 60, 1)
    assert result["location"] == f"{folder}/trips"
    assert "trips: 60 rows in" in err


def test_quiet_prints_nothing(publish, source, tmp_path):
    assert publish(source, "trips", "--to", str(tmp_path), "--quiet") == (0, "", "")


def test_an_error_is_one_line_with_a_status(publish, source, tmp_path):
    status, out, err = publish(source, "trips", "--to", str(tmp_path), "--select", "absent")
    assert (status, out) == (2, "")
    assert re.fullmatch(r"splitarrow: error: .*`absent`.*`id`.*\n", err), err
    status, _, err = publish(source, "trips", "--to", "a", "--split", "train=most")
    assert (status, err.count("\n")) == (2, 1)


def test_a_dataset_is_not_replaced_without_a_mode(publish, source, tmp_path):
    folder = str(tmp_path / "sets")
    assert publish(source, "trips", "--to", folder, "--quiet")[0] == 0
    status, _, err = publish(source, "trips", "--to", folder)
    assert (status, "sets/trips exists, in version 1" in err) == (1, True), err


@pytest.mark.long
def test_the_output_of_spark_goes_to_the_log_alone(source, tmp_path):
    log = tmp_path / "log"
    arguments = [source, "trips", "--to", str(tmp_path), "--spark-log", str(log), "--json"]
    process = publish_in_new_process(*arguments)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)[0]["rows"] == 100
    assert re.fullmatch(r"trips: 100 rows in .*\n", process.stderr)
    assert "log4j" in log.read_text()


def test_the_error_contains_the_reason_that_java_does_not_start(source, tmp_path):
    arguments = [source, "trips", "--to", str(tmp_path), "--conf", "spark.driver.memory=1k"]
    process = publish_in_new_process(*arguments)
    assert process.returncode == 1
    assert re.fullmatch(r"splitarrow: error: Java does not start: .*heap.*\n", process.stderr)


@pytest.mark.long
def test_spark_submit_runs_the_script(source, tmp_path):
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    launcher = (submit, "--master", "local[1]", SCRIPT)
    arguments = [source, "trips", "--to", str(tmp_path / "sets"), "--json"]
    process = publish_in_new_process(*arguments, launcher=launcher)
    assert process.returncode == 0, process.stderr[-3000:]
    (line,) = [line for line in process.stdout.splitlines() if line.startswith("[{")]
    assert json.loads(line)[0]["rows"] == 100
