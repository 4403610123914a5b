"""Objects for the executors, unpickled by an interpreter that lacks this package."""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark import cloudpickle

from splitarrow.pipeline.workers import Portable


class Parts(Portable):
    """Keeps a value."""

    def __init__(self, value: int) -> None:
        self.value = value


def test_an_object_returns_where_the_packages_are() -> None:
    assert cloudpickle.loads(cloudpickle.dumps(Parts(7))).value == 7


@pytest.mark.slow
def test_a_missing_module_is_named_with_the_interpreter_and_a_way_out(tmp_path: Path) -> None:
    from splitarrow.pipeline.reader import RemoteDataset, TaskReader

    venv.create(tmp_path / "bare", symlinks=True)
    python = tmp_path / "bare" / "bin" / "python3"
    reader = TaskReader(RemoteDataset("grpc://a", "rows"), (), None, pa.schema([]))
    (tmp_path / "pickle").write_bytes(cloudpickle.dumps(reader))
    libraries = (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")
    code = "from pyspark import cloudpickle; cloudpickle.load(open('pickle', 'rb'))"
    process = subprocess.run(
        [python, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, libraries))},
    )
    message = process.stderr.splitlines()[-1]
    assert message.startswith(f"ImportError: the interpreter {python} of the executor on host ")
    assert "has no module 'splitarrow'; install splitarrow[spark] there" in message
