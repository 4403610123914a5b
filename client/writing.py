"""What a client of a control plane adds to its server, and takes away."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from .calls import Caller
from .described import Published, Stored, StoredShard
from .publishing import publication, published, put_shard, shard_data
from .reading import checked_name
from .upload import Progress, batches_of, put


class Uploads(ABC):
    """The half of a client that writes."""

    _caller: Caller

    @abstractmethod
    def act(self, action: str, body: bytes = b"", *, subject: str | None = None) -> bytes:
        """Have the server do something; return its answer."""

    def put(
        self,
        name: str,
        data: Any,
        *,
        schema: pa.Schema | None = None,
        progress: Progress | None = None,
    ) -> Stored:
        """Upload a dataset. It appears at the server once it is complete, or not at all.

        Parameters
        ----------
        name : str
            What it shall be called.
        data : Table, RecordBatch, RecordBatchReader, object with an Arrow C stream, or batches
            What it is made of. Batches are sent as they come: they need not fit into memory.
        schema : pyarrow.Schema, optional
            The schema; needed where there are no batches to tell it.
        progress : callable, optional
            Is told how many rows and bytes have been handed over, from another thread.
        """
        found, batches = batches_of(data, schema)
        return put(self._caller, checked_name(name), found, batches, progress)

    def put_shard(
        self,
        name: str,
        data: Any,
        *,
        job: str,
        ordinal: int,
        schema: pa.Schema | None = None,
        compression: str | None = None,
        progress: Progress | None = None,
    ) -> StoredShard:
        """Upload a shard of a dataset that is to be published. Nobody sees it before `publish`.

        A shard may be sent again: the last one counts, and after `publish` none.

        Parameters
        ----------
        name : str
            The dataset.
        data : path-like, or whatever `put` takes
            An Arrow IPC file, or what the shard is made of.
        job : str
            The publication: the same for all of its shards, and for no other.
        ordinal : int
            The place of the shard in the whole dataset, over all servers, from 0.
        schema : pyarrow.Schema, optional
            The schema; needed where there are no batches to tell it.
        compression : {"none", "lz4", "zstd"}, optional
            How it is stored; by default as it lies in the file.
        progress : callable, optional
            Is told how many rows and bytes have been handed over, from another thread.
        """
        with shard_data(data, schema) as found:
            return put_shard(
                self._caller, checked_name(name), found, job, ordinal, compression, progress
            )

    def publish(
        self,
        name: str,
        *,
        job: str,
        ordinals: Iterable[int],
        shards_total: int | None = None,
        snapshot: str | None = None,
        mode: str = "overwrite",
        schema: pa.Schema | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Published:
        """Make the shards that were uploaded for a job a version of the dataset.

        The same job again gives the version that there is.

        Parameters
        ----------
        name : str
            The dataset.
        job : str
            The publication.
        ordinals : iterable of int
            The shards that this server has to have; it refuses where one is missing.
        shards_total : int, optional
            How many shards the whole dataset has, over all servers; by default those here.
        snapshot : str, optional
            What is the same at every server that has shards of this publication; by default
            the job.
        mode : {"overwrite", "append"}
            Whether the version has these shards only, or those of the version before as well.
        schema : pyarrow.Schema, optional
            The schema; needed where the server gets no shard.
        properties : mapping of str to str, optional
            What else to keep in the manifest.
        """
        body = publication(
            checked_name(name), job, ordinals, shards_total, snapshot, mode, schema, properties
        )
        return published(name, self.act("publish", body, subject=name))

    def discard(self, name: str, job: str) -> None:
        """Remove what was uploaded for a job that is not to be published."""
        body = json.dumps({"dataset": checked_name(name), "job": job}, ensure_ascii=False)
        self.act("discard", body.encode(), subject=name)

    def drop(self, name: str) -> None:
        """Remove a dataset that was uploaded or published."""
        self.act("drop", checked_name(name).encode(), subject=name)
