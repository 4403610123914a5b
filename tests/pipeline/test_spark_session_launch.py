"""Starting Spark again after Java has exited."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import PySparkRuntimeError

from helpers.waiting import wait_until
from splitarrow.errors import ConfigError
from splitarrow.pipeline.spark_session import DEFAULTS, start_session


class Builder:
    """Fails a number of times, and leaves a pipe open each time, as PySpark does."""

    def __init__(self, path: Path, failures: int) -> None:
        self.path = path
        self.failures = failures

    def getOrCreate(self) -> Any:
        pipe = self.path.open("wb")
        if self.failures:
            self.failures -= 1
            raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
        pipe.close()
        return "session"


def test_java_is_started_again_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert start_session(Builder(tmp_path / "pipe", failures=2)) == "session"
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


@pytest.mark.slow
def test_a_worker_that_spark_ends_while_it_is_idle_prints_nothing(tmp_path: Path) -> None:
    enabled = DEFAULTS.get("spark.python.unix.domain.socket.enabled", "false")
    environment = {
        **os.environ,
        "PYTHON_UNIX_DOMAIN_ENABLED": enabled,
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(tmp_path),
        "PYTHON_WORKER_FACTORY_SECRET": "x",
        "SPARK_AUTH_SOCKET_TIMEOUT": "15",
        "SPARK_REUSE_WORKER": "1",
    }
    # As Spark does: start the daemon, ask it for a worker, and close the connection.
    command = [sys.executable, "-m", "pyspark.daemon", "pyspark.worker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        number = int.from_bytes(daemon.stdout.read(4), "big")
        if enabled == "true":
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(daemon.stdout.read(number))
        else:
            connection = socket.create_connection(("127.0.0.1", number))
        with connection, connection.makefile("rb") as answers:
            worker = int.from_bytes(answers.read(4), "big")
            connection.sendall(b"\0\0\0\1x")
            answers.read(6)
        wait_until(lambda: not psutil.pid_exists(worker), "the end of the worker")
        daemon.stdin.close()
        assert daemon.stderr.read() == b""


def test_java_that_never_starts_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Java does not start"):
        start_session(Builder(tmp_path / "pipe", failures=3))
