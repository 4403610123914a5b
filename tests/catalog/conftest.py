"""Places for published datasets: a folder, and a bucket of a server that speaks S3."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Generator
from pathlib import Path
from uuid import uuid4

import pytest


@pytest.fixture(scope="session")
def s3_server() -> Generator[str]:
    """The address of a server that speaks S3, with a bucket ``bucket``."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    request = urllib.request.Request(f"{endpoint}/bucket", method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200
    yield endpoint
    server.stop()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a prefix of its own in that bucket."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return f"s3://bucket/{uuid4().hex}/flights"


@pytest.fixture(params=["folder", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a dataset may be published."""
    if request.param == "s3":
        return request.getfixturevalue("bucket")
    return str(tmp_path / "flights")
