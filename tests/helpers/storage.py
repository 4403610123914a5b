"""Locations for published datasets: a folder, and a bucket of an S3 server."""

from __future__ import annotations

import logging
import threading
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest


@pytest.fixture(scope="session")
def s3_server() -> Generator[str]:
    """The address of an S3 server with the bucket ``bucket``."""
    with running_s3_server() as endpoint:
        yield endpoint


@contextmanager
def running_s3_server() -> Generator[str]:
    """Run an S3 server with the bucket ``bucket``; yield its address."""
    from moto.s3.responses import S3Response
    from moto.server import ThreadedMotoServer

    put_object, lock = S3Response.put_object, threading.Lock()

    def put_alone(self: Any) -> Any:
        """Check a condition and put the object as one step, as S3 does and moto does not."""
        with lock:
            return put_object(self)

    S3Response.put_object = put_alone
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    request = urllib.request.Request(f"{endpoint}/bucket", method="PUT")
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.status == 200
    try:
        yield endpoint
    finally:
        server.stop()
        S3Response.put_object = put_object


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new prefix in the bucket of the S3 server."""
    return set_up_bucket(s3_server, monkeypatch)


def set_up_bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set the variables for an S3 server; return the URL of a new prefix in its bucket."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return f"s3://bucket/{uuid4().hex}/flights"


@pytest.fixture(
    params=[
        "folder",
        pytest.param("s3", marks=[pytest.mark.slow, pytest.mark.xdist_group("s3_server")]),
    ]
)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A location where a dataset can be published."""
    if request.param == "s3":
        return request.getfixturevalue("bucket")
    return str(tmp_path / "flights")
