"""Requests to the HTTP listener of a server."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families


class Answer(NamedTuple):
    """A response."""

    status: int
    headers: Mapping[str, str]
    text: str


def request(
    uri: str,
    path: str = "/",
    *,
    method: str = "GET",
    token: str | None = None,
    body: str | None = None,
    **headers: str,
) -> Answer:
    """Send a request over a connection of its own."""
    address = urlsplit(uri)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    try:
        return request_over(connection, path, method=method, token=token, body=body, **headers)
    finally:
        connection.close()


def request_over(
    connection: http.client.HTTPConnection,
    path: str,
    *,
    method: str = "GET",
    token: str | None = None,
    body: str | None = None,
    **headers: str,
) -> Answer:
    """Send a request. Underscores in the names of headers become hyphens."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        fields["Authorization"] = f"Bearer {token}"
    connection.request(method, path, body, fields)
    response = connection.getresponse()
    return Answer(response.status, dict(response.getheaders()), response.read().decode())


def basic(name: str, token: str) -> str:
    """Return the header Authorization that a browser sends."""
    return "Basic " + base64.b64encode(f"{name}:{token}".encode()).decode()


def request_json(uri: str, path: str, token: str | None = None) -> Any:
    """Return a JSON document."""
    answer = request(uri, path, token=token)
    assert answer.status == 200, answer
    return json.loads(answer.text)


Samples = dict[tuple[str, ...], float]
"""Values by the name of a series and the values of its labels, in the order of their names."""


def scrape(uri: str, token: str | None = None) -> Samples:
    """Return the metrics of a server."""
    answer = request(uri, "/metrics", token=token)
    assert answer.status == 200, answer
    return {
        (sample.name.removeprefix("splitarrow_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
