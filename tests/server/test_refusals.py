"""Errors that readers get name the dataset, and no path of the server; the log has the path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

import splitarrow
from helpers.daemons import StartDaemon
from helpers.files import write_file, write_parquet, write_shards
from splitarrow import errors
from splitarrow.errors import (
    DatasetError,
    InvalidRequestError,
    LimitError,
    NotFoundError,
    RemoteError,
    SplitArrowError,
)
from splitarrow.server.refusals import describe_for_reader, describe_status

TABLE = pa.table({"n": range(100_000)})


@pytest.mark.parametrize(
    ("location", "text", "expected"),
    [
        ("/a b/f", "cannot read /a b/f: no", "cannot read dataset 'f': no"),
        ("/a/f", "cannot open '/a/f': no", "cannot open dataset 'f': no"),
        ("/a/f", "/a/f ends at byte 7", "dataset 'f' ends at byte 7"),
        ("/a b/f", "/a b/f/p=1/2.arrow is cut", "p=1/2.arrow is cut (dataset 'f')"),
        ("/a/f/", "/a/f/2.arrow is cut", "2.arrow is cut (dataset 'f')"),
        ("s3://b/f", "s3://b/f/_m/3.json is cut", "_m/3.json is cut (dataset 'f')"),
        ("a/f", "cannot read a/f: no", "cannot read dataset 'f': no"),
        ("f", "cannot read f: no", "cannot read f: no (dataset 'f')"),
        ("/a/f", "/a/f2/x is cut", "x is cut (dataset 'f')"),
        (None, "cannot read /var/cache/x.arrow: no", "cannot read x.arrow: no (dataset 'f')"),
        (None, "(/tmp/x) https://h/y/z; 3 MB/s, 1/2", "(x) z; 3 MB/s, 1/2 (dataset 'f')"),
    ],
)
def test_paths_become_the_dataset_or_names_within_it(
    location: str | None, text: str, expected: str
) -> None:
    for error in (DatasetError(text), LimitError(text)):
        assert describe_for_reader(error, "f", location) == expected


@pytest.mark.parametrize("error", [InvalidRequestError("no column '/a/f'"), NotFoundError("/a/f")])
def test_what_the_reader_requested_is_quoted_unchanged(error: SplitArrowError) -> None:
    assert describe_for_reader(error, None, "/a/f") == error.message


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("kind", "damage"),
    [("arrow", truncate), ("arrow", Path.unlink), ("parquet", truncate), ("folder", truncate)],
)
def test_no_transport_shows_a_path(
    daemon: StartDaemon, tmp_path: Path, kind: str, damage: Callable[[Path], object]
) -> None:
    secret = tmp_path / "secret-place"
    if kind == "arrow":
        path = file = write_file(secret / "x.arrow", TABLE)
    elif kind == "parquet":
        path = file = write_parquet(secret / "x.parquet", TABLE)
    else:
        path = secret / "parts"
        file = write_shards(path, [TABLE, TABLE])[1]
    listen = ["tcp://127.0.0.1:0", f"shm://{tmp_path}/socket"]
    running = daemon({"trips": path}, listen=listen, control="grpc://127.0.0.1:0")
    with splitarrow.connect(running.control_uri) as client:
        damage(file)
        for transport in ("tcp", "shm", "flight"):
            with pytest.raises(RemoteError) as caught:
                client.read("trips", transport=transport, resume_attempts=0).read_all()
            assert "'trips'" in str(caught.value)
            assert "secret-place" not in str(caught.value)
    with pytest.raises(RemoteError) as caught:
        splitarrow.open(running.uri("trips", "tcp")).read_all()
    assert "'trips'" in str(caught.value)
    assert "secret-place" not in str(caught.value)
    assert str(file) in running.log()


STATUS_CODES = {code.name for code in grpc.StatusCode} - {"OK"}
EVERY_ERROR = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.SplitArrowError)
]


@pytest.mark.parametrize("kind", EVERY_ERROR)
def test_every_error_has_a_status_that_names_its_dataset(kind: type[Any]) -> None:
    code, text = describe_status(kind("it went wrong", stream="flights"), None, None)
    assert code in STATUS_CODES
    assert "'flights'" in text


def test_a_status_fits_into_a_header() -> None:
    error = errors.remote_error("NO_SUCH_CODE", "x" * 100_000)
    _, text = describe_status(error, "y" * 100_000, None)
    assert len(text.encode()) < 4096
