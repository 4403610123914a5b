"""Builds the jar of the reader in the JVM: the same classes from the same sources and compiler.

It needs a ``javac`` of `JAVA_VERSION`, and PySpark, whose jars are the only dependencies. Every
version of Spark that the jar works with makes the same classes::

    python -m splitarrow.pipeline.jvm.build_jar TARGET
    python -m splitarrow.pipeline.jvm.build_jar --check TARGET
    python -m splitarrow.pipeline.jvm.build_jar --check TARGET FOLDER/pyspark/jars
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

from ...errors import ConfigError, MissingExtraError, SplitArrowError, install_hint
from . import SOURCE_CLASS

JAVA_VERSION = 17
"""The version of the compiler, and of the class files: the oldest that Spark runs on."""
_SOURCES = Path(__file__).with_name("java")
_SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"

_TIME = (1980, 1, 1, 0, 0, 0)
_OPTIONS = ("-Xlint:all,-processing,-classfile,-path", "-Werror", "-proc:none", "-g:none")


def build_jar(target: Path, spark: Path | None = None) -> None:
    """Compile the sources with the jars in a folder, by default PySpark's, and write the jar.

    Raises `MissingExtraError` if PySpark or the compiler is not installed, and `ConfigError` if the
    compiler has another version, or reports a warning or an error.
    """
    compiler = _find_compiler()
    with tempfile.TemporaryDirectory() as folder:
        classes = Path(folder)
        files = sorted(str(path) for path in _SOURCES.rglob("*.java"))
        command = [compiler, *_OPTIONS, "--release", str(JAVA_VERSION), "-encoding", "UTF-8"]
        command += ["-cp", f"{spark or _spark_jars()}/*", "-d", folder, *files]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise ConfigError(f"javac fails:\n{result.stdout}{result.stderr}".rstrip())
        entries = {"META-INF/MANIFEST.MF": b"Manifest-Version: 1.0\r\n\r\n"}
        entries[_SERVICE] = f"{SOURCE_CLASS}\n".encode()
        for path in classes.rglob("*.class"):
            entries[path.relative_to(classes).as_posix()] = path.read_bytes()
    _write_zip(target, entries)


def _find_compiler() -> str:
    compiler = shutil.which("javac")
    if compiler is None:
        raise MissingExtraError(f"the jar needs javac {JAVA_VERSION} on PATH")
    version = subprocess.run([compiler, "-version"], capture_output=True, text=True, check=True)
    match = re.search(r"javac (\d+)", version.stdout + version.stderr)
    if match is None or int(match[1]) != JAVA_VERSION:
        found = (version.stdout + version.stderr).strip()
        raise ConfigError(f"{compiler} is {found}; the jar needs javac {JAVA_VERSION}")
    return compiler


def _spark_jars() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingExtraError(f"the jar needs PySpark: {install_hint('spark')}")
    return Path(spec.origin).parent / "jars"


def _write_zip(target: Path, entries: dict[str, bytes]) -> None:
    """Write entries in a fixed order and with fixed times."""
    with zipfile.ZipFile(target, "w") as archive:
        for name in sorted(entries):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, entries[name])


def check_jar(jar: Path, spark: Path | None = None) -> None:
    """Check that a jar has the contents that its sources compile to with the jars in a folder.

    Raises `ConfigError` if an entry differs, with its name, and `MissingExtraError` if PySpark or
    the compiler is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "built.jar")
        build_jar(built, spark)
        expected, found = _read_zip(built), _read_zip(jar)
    names = sorted(expected.keys() | found.keys())
    differing = [name for name in names if expected.get(name) != found.get(name)]
    if differing:
        raise ConfigError(f"{jar} is not what its sources compile to: {differing[0]} differs")


def _read_zip(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _main() -> None:
    paths = [Path(argument) for argument in sys.argv[1:] if argument != "--check"]
    try:
        (check_jar if "--check" in sys.argv else build_jar)(*paths)
    except SplitArrowError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()
