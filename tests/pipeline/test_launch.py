"""Starting Spark again after Java has exited."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError

from splitarrow.errors import ConfigError
from splitarrow.pipeline.spark.launch import start_session


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


def test_java_that_never_starts_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Java does not start"):
        start_session(Builder(tmp_path / "pipe", failures=3))
