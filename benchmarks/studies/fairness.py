"""The reads of a principal beside another's streams, as JSON.

``python -m splitarrow.benchmarks.studies.fairness [STREAMS]`` reads a Parquet file again and again
as one principal: first alone, and then while another one opens many streams in the format Vortex,
each with other rows, that nobody reads. Each figure is in seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ... import connect
from ...errors import SplitArrowError
from ...server.auth.token_file import add_token
from ...testing import Daemon

STREAMS = 60
ROUNDS = 30
_ROWS = 2_000_000
_READ_ROWS = 200_000
_CROWD = """
import sys, splitarrow
streams, rows = int(sys.argv[2]), int(sys.argv[3])
with splitarrow.connect(sys.argv[1], token=sys.argv[4]) as client:
    print("begun", flush=True)
    opened = [
        client.read("data", format="vortex", transport="tcp", limit=rows - number)
        for number in range(streams)
    ]
    print("opened", flush=True)
    sys.stdin.read()
"""


def measure(streams: int = STREAMS, rounds: int = ROUNDS, rows: int = _ROWS) -> dict[str, Any]:
    """Return the median and the longest time of a read, alone and beside the streams."""
    with TemporaryDirectory(prefix="splitarrow-fairness-") as name:
        folder = Path(name)
        values = np.random.default_rng(1)
        numbers, reals = pa.array(np.arange(rows)), pa.array(values.normal(size=rows))
        pq.write_table(pa.table({"n": numbers, "x": reals}), folder / "data.parquet")
        tokens = folder / "tokens.toml"
        reader, crowd = (add_token(tokens, each, ["*"], []) for each in ("reader", "crowd"))
        daemon = Daemon(
            {"data": folder / "data.parquet"}, control="grpc://127.0.0.1:0", token_file=tokens
        )
        with daemon, connect(daemon.control_uri, token=reader) as client:

            def read() -> float:
                begin = time.monotonic()
                part = min(_READ_ROWS, rows)
                if client.read("data", transport="tcp", limit=part).read_all().num_rows != part:
                    raise SplitArrowError("a read is incomplete")
                return time.monotonic() - begin

            read()
            alone = [read() for _ in range(rounds)]
            with _open_crowd(daemon.control_uri, str(streams), str(rows), crowd):
                beside = [read() for _ in range(rounds)]
    return {
        "alone": {"median": median(alone), "worst": max(alone)},
        "beside": {"median": median(beside), "worst": max(beside)},
        "ratios": {
            "median": median(beside) / median(alone),
            "worst": max(beside) / median(alone),
        },
    }


@contextmanager
def _open_crowd(*arguments: str) -> Generator[None]:
    """Open the streams of the other principal while the context lasts."""
    command = [sys.executable, "-P", "-c", _CROWD, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"begun\n":
                raise SplitArrowError("the other client has failed")
            yield
        finally:
            process.kill()


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:])), indent=2))
