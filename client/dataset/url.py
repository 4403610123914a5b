"""A dataset over HTTP, without a control plane."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from ...protocol.request import Request
from ...protocol.uri import DataUri
from ...transport.tls_options import check_tls
from ..arguments import Read
from ..http.download import HttpServer, open_with_token
from ..rpc.info import DatasetInfo, Endpoint
from ..stream.tracing import trace_read
from ..tokens import TokenSource
from .dataset import DatasetStream
from .endpoints import Replica, ResumableEndpoint


def open_url(uri: DataUri, token: TokenSource | None, read: Read) -> DatasetStream:
    """Open a dataset of the server at a URI; raises as `splitarrow.open` does.

    The version that the first response states lets the read resume.
    """
    options = read.options
    check_tls(options.tls)
    request, name = read.request, read.request.dataset
    server = HttpServer(uri, token, options.tls)
    url = f"{server.locate(name)}/data"

    def describe(request: Request) -> DatasetInfo:
        endpoint = Endpoint(request.ticket(), (url,))
        return DatasetInfo(name, None, None, _NO_SCHEMA, "", request.version or "", (endpoint,))

    with trace_read(name) as trace:
        if read.filter is not None:
            from ...filters import encode_filter

            # A filter may use any column.
            whole = Request(name, version=request.version, limit=0)
            preparation = options.for_preparation()
            with closing(open_with_token(server, url, name, preparation, whole)) as stream:
                request = replace(request, filter=encode_filter(read.filter, stream.schema))
        (endpoint,) = describe(request).endpoints
        replica = Replica(server, describe, request, request.version or "", None, endpoint)
        resumable = ResumableEndpoint([replica], name, read.plan, limit=request.limit)
        return DatasetStream(name, _NO_SCHEMA, [resumable], 1, options.window_bytes, trace=trace)


_NO_SCHEMA = pa.schema([])
"""Stands for the schema until the stream is open."""
