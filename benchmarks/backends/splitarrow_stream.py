"""splitarrow: its server and one of its clients, over any of its transports."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import anyio

from ... import aio, serve
from ... import open as open_stream
from ...errors import MissingExtraError
from ...protocol.uri import DataUri
from ...server.config.settings import ServeArguments
from ...transport.registry import find_transport
from ...transport.tls_options import TlsOptions
from ..datasets import BatchFile
from ..options import Validate
from .backend import CA_MARK, Consumer, make_certificates, missing_package, write_parquet

_DATASET = "benchmark"


class SplitArrowBackend:
    """splitarrow's server and one of its clients. The scheme of `listen` selects the transport."""

    def __init__(
        self,
        name: str,
        listen: str,
        *,
        asynchronous: bool = False,
        in_process: bool = False,
        body: Literal["packed", "remote"] | None = None,
        lanes: str | None = None,
        parquet: bool = False,
        baseline: str = "flight",
    ) -> None:
        self.name = name
        self.in_process = in_process
        self.baseline: str | None = baseline
        self._listen = listen
        self._asynchronous = asynchronous
        self._body = body
        self._lanes = lanes
        self._parquet = parquet
        self._tls = "+tls:" in listen
        self.summary = self._summarize()

    def _summarize(self) -> str:
        details = [f"splitarrow over {self._listen.partition(':')[0]}"]
        if self._lanes is not None:
            details.append(f"{self._lanes} lanes only")
        if self._body == "packed":
            details.append("packed bodies")
        elif self._body == "remote":
            details.append("remote bodies")
        details.append(f"the {'asynchronous' if self._asynchronous else 'blocking'} client")
        if self.in_process:
            details.append("within one process")
        if self._parquet:
            details.append("of a Parquet file")
        return ", ".join(details)

    def unavailable_reason(self) -> str | None:
        """Return why the transport cannot be used on this machine, or None if it can."""
        try:
            find_transport(DataUri.parse(self._listen))
        except MissingExtraError as error:
            return error.message
        return missing_package() if self._tls else None

    @contextmanager
    def serve(self, dataset: BatchFile) -> Generator[str]:
        """Serve the file; see `Backend.serve`."""
        self._select_lanes()
        path: Any = write_parquet(dataset, self.name) if self._parquet else dataset.path
        settings: ServeArguments = {}
        mark = ""
        if self._tls:
            certificates = make_certificates(Path(dataset.path).parent, self.name)
            settings = {"tls_cert": certificates.chain, "tls_key": certificates.key}
            mark = f"{CA_MARK}{certificates.authority}"
        with serve({_DATASET: path}, listen=[self._listen], **settings) as server:
            uri = DataUri.parse(server.uri(_DATASET))
            if self._body is not None:
                uri = uri.replace(extra=(*uri.extra, ("body", self._body)))
            yield f"{uri}{mark}"

    def read(self, address: str, consumer: Consumer, *, validate: Validate | None = None) -> None:
        """Read all batches; see `Backend.read`."""
        self._select_lanes()
        if self._asynchronous:
            anyio.run(self._read_async, address, consumer, validate)
            return
        uri, _, authority = address.partition(CA_MARK)
        tls = TlsOptions(ca_file=authority) if authority else None
        rows = consumer.dataset.batch_rows if self._parquet else None
        with open_stream(uri, validate=validate, tls=tls, batch_rows=rows) as stream:
            if consumer.reads_table:
                consumer.consume_table(stream.read_all())
            else:
                consumer.consume_batches(stream)

    async def _read_async(
        self, address: str, consumer: Consumer, validate: Validate | None
    ) -> None:
        async with aio.open(address, validate=validate) as stream:
            if consumer.reads_table:
                consumer.consume_table(await stream.read_all())
            else:
                await consumer.consume_batches_async(stream)

    def _select_lanes(self) -> None:
        if self._lanes is not None:
            os.environ["UCX_TLS"] = self._lanes  # UCX reads it once in a process
