"""``splitarrow publish`` as a process: what it prints, its status, and under spark-submit."""

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

from splitarrow.pipeline.submit import SCRIPT


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "trips.parquet"
    pq.write_table(pa.table({"id": range(100), "fare": [float(n) for n in range(100)]}), path)
    return str(path)


def run(*arguments, launcher=(sys.executable, "-m", "splitarrow", "publish")):
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        [*launcher, *arguments], capture_output=True, text=True, timeout=200, env=environment
    )


def test_what_was_published_is_printed(source, tmp_path):
    place = str(tmp_path / "sets")
    done = run(source, "trips", "--to", place, "--filter", "id < 60", "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert (found["dataset"], found["rows"], found["version"]) == ("trips", 60, 1)
    assert found["place"] == f"{place}/trips"
    assert "trips: 60 rows in" in done.stderr


def test_an_error_is_one_line_with_a_status(source, tmp_path):
    done = run(source, "trips", "--to", str(tmp_path), "--select", "nix")
    assert done.returncode == 2
    assert re.fullmatch(r"splitarrow: error: .*`nix`.*`id`.*\n", done.stderr), done.stderr
    assert done.stdout == ""
    assert run(source, "trips", "--to", "a", "--split", "train=most").returncode == 2


def test_what_java_says_as_it_fails_is_told(source, tmp_path):
    done = run(source, "trips", "--to", str(tmp_path), "--conf", "spark.driver.memory=1k")
    assert done.returncode == 1
    assert re.fullmatch(r"splitarrow: error: Java does not start: .*heap.*\n", done.stderr)


def test_the_log_of_spark_goes_where_it_is_asked_for(source, tmp_path):
    log = tmp_path / "log"
    done = run(source, "trips", "--to", str(tmp_path), "--spark-log", str(log), "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "log4j" in log.read_text()


@pytest.mark.long
def test_spark_submit_runs_it(source, tmp_path):
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    launcher = (submit, "--master", "local[1]", SCRIPT)
    done = run(source, "trips", "--to", str(tmp_path / "sets"), "--json", launcher=launcher)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("[{")]
    assert json.loads(line)[0]["rows"] == 100
