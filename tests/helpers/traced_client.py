"""A program that OpenTelemetry traces, and that reads a dataset. It prints the trace's number.

Usage: ``traced_client.py METHOD URI [NAME [TRANSPORT [TOKEN]]]``. The method is ``open``, ``aio``,
``read`` or ``read_aio``; the last two take the URI of a control plane.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import splitarrow
from splitarrow.errors import SplitArrowError


def read(method: str, uri: str, name: str = "", transport: str = "auto", *token: str) -> int:
    """Read a dataset, and return the number of its rows."""
    options: Any = {"token": token[0]} if token else {}
    if method == "open":
        with splitarrow.open(uri) as stream:
            return sum(batch.num_rows for batch in stream)
    if method == "read":
        with splitarrow.connect(uri, **options) as client:
            return client.read(name, transport=transport).read_all().num_rows
    return asyncio.run(read_async(method, uri, name, transport))


async def read_async(method: str, uri: str, name: str, transport: str) -> int:
    if method == "aio":
        async with splitarrow.aio.open(uri) as stream:
            return (await stream.read_all()).num_rows
    async with (
        splitarrow.aio.connect(uri) as client,
        client.read(name, transport=transport) as stream,
    ):
        return (await stream.read_all()).num_rows


def main() -> None:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    with trace.get_tracer("application").start_as_current_span("application") as span:
        try:
            rows: object = read(*sys.argv[1:])
        except SplitArrowError as error:
            rows = type(error).__name__
        print(f"{span.get_span_context().trace_id:032x}", rows)
    provider.shutdown()


if __name__ == "__main__":
    main()
