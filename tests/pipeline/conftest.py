"""The Spark session that all tests share, and daemons with a control plane."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from helpers.daemons import StartDaemon
from splitarrow.pipeline import session
from splitarrow.testing import Daemon

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    # Short queries gain less from the optimizing compiler than it takes from other processes.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "OFF",
    "spark.task.maxFailures": "4",
    # A zone that is not UTC shows where a conversion takes the session's zone by mistake.
    "spark.sql.session.timeZone": "America/New_York",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the older versions of PySpark warn: 3.5 uses distutils, and 4.1 leaves sockets open."""
    if tuple(map(int, version("pyspark").split(".")[:2])) >= (4, 2):
        return
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:.*distutils:DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:Exception ignored in"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session that repeats failed tasks, as a cluster does."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    environment = dict(os.environ)
    spark = session(
        "splitarrow tests",
        master="local[2,4]",
        settings={**SETTINGS, "spark.sql.warehouse.dir": str(warehouse)},
    )
    try:
        yield spark
    finally:
        spark.stop()
        _stop_java(type(spark.sparkContext))
        os.environ.clear()
        os.environ.update(environment)


def _stop_java(context: Any) -> None:
    """End the Java process, which PySpark otherwise keeps until this process ends."""
    gateway = context._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        context._gateway = None


@pytest.fixture
def serve(daemon: StartDaemon) -> Callable[..., Daemon]:
    """Start daemons with a control plane, which listen on TCP and shared memory."""

    def start(datasets: Mapping[str, Path] | None = None, **settings: Any) -> Daemon:
        listen = ["tcp://127.0.0.1:0", "shm://"]
        return daemon(datasets, listen=listen, control="grpc://127.0.0.1:0", **settings)

    return start


@pytest.fixture
def writable_daemons(serve: Callable[..., Daemon], tmp_path: Path) -> list[Daemon]:
    """Two daemons that accept uploads."""
    daemons: list[Daemon] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        daemons.append(serve(writable=tmp_path / name))
    return daemons
