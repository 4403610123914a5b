"""The transaction log of a Delta table, read by deltalake ("Delta Transaction Log Protocol")."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from ....errors import DatasetError, MissingExtraError
from ....publication.storage import check_credentials

LOG_FOLDER = "_delta_log"
"""The folder that makes a folder a Delta table."""
_READER_VERSION = 3
_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""The reader features that change nothing about how data files are read."""
_CHECKED_FEATURES = frozenset({"columnMapping", "deletionVectors"})
"""The reader features that a table may list without using them."""
_PARTITION = "partition."


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """A data file of one version of a table."""

    name: str
    """The path below the folder of the table. ``/`` separates its components."""
    partition_values: Mapping[str, Any]
    """The values of the partition columns, as ``pyarrow.Scalar``."""


@dataclass(frozen=True, slots=True)
class DeltaSnapshot:
    """One version of a table."""

    number: int
    """The version in the log."""
    version: str
    """The number, and a hash that differs for a table created elsewhere or anew."""
    schema: pa.Schema
    """The schema of the table, partition columns included."""
    files: tuple[DeltaFile, ...]
    """The data files, in the order of their names."""


class DeltaLog:
    """The log of a table. Safe to use from several threads.

    Parameters
    ----------
    location : str
        The folder of the table, or its URL in an object store.

    Raises
    ------
    MissingExtraError
        If the extra ``delta`` is not installed.
    UsageError
        If there are no credentials for the store.
    DatasetError
        If the log cannot be read.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        """The folder, or the URL."""
        check_credentials(location, os.environ)
        self._api = _import_deltalake(location)
        self._lock = threading.Lock()
        self._table: Any = self._open(None)

    def load_newest(self, known: DeltaSnapshot | None = None) -> DeltaSnapshot:
        """Return the newest version; `known` if that is still the newest.

        Raises
        ------
        DatasetError
            If the log cannot be read, or the table uses a feature that is not supported.
        """
        with self._lock:
            try:
                self._table.update_incremental()
            except self._errors as error:
                raise self._read_error(error) from None
            number: int = self._table.version()
            if known is not None and known.number == number:
                return known
            return self._load(self._table)

    def load(self, number: int) -> DeltaSnapshot | None:
        """Return a version; None if the log does not have it any more.

        Raises
        ------
        DatasetError
            If the table uses a feature that is not supported.
        """
        try:
            return self._load(self._open(number))
        except DatasetError as error:
            if isinstance(error.__cause__, self._errors):
                return None
            raise

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        return (self._api.exceptions.DeltaError, OSError, ValueError)

    def _open(self, number: int | None) -> Any:
        try:
            return self._api.DeltaTable(self.location, version=number)
        except self._errors as error:
            raise self._read_error(error) from error

    def _read_error(self, error: Exception) -> DatasetError:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        return DatasetError(f"cannot read the Delta table {self.location}: {reason}")

    def _load(self, table: Any) -> DeltaSnapshot:
        self._check_features(table)
        try:
            schema = pa.schema(table.schema())
            actions = pa.table(table.get_add_actions(flatten=True))
            metadata = table.metadata()
        except (*self._errors, pa.ArrowException) as error:
            raise self._read_error(error) from None
        files = self._list_files(actions, schema, metadata.partition_columns)
        digest = hashlib.blake2b(str(metadata.id).encode(), digest_size=4).hexdigest()
        number: int = table.version()
        return DeltaSnapshot(number, f"{number}-{digest}", schema, files)

    def _list_files(
        self, actions: pa.Table, schema: pa.Schema, partition_columns: list[str]
    ) -> tuple[DeltaFile, ...]:
        values = {
            name: actions[_PARTITION + name].cast(schema.field(name).type)
            for name in partition_columns
        }
        files: list[DeltaFile] = []
        for number, path in enumerate(actions["path"].to_pylist()):
            name = unquote(str(path))
            if "://" in name or name.startswith("/") or ".." in name.split("/"):
                raise self._unsupported("files outside of its folder (a shallow clone)")
            files.append(DeltaFile(name, {key: column[number] for key, column in values.items()}))
        return tuple(sorted(files, key=lambda file: file.name.split("/")))

    def _check_features(self, table: Any) -> None:
        """Check that the data files alone, as they are, have the rows of the table."""
        protocol, metadata = table.protocol(), table.metadata()
        features: set[str] = set(protocol.reader_features or ())
        unknown = features - _FEATURES - _CHECKED_FEATURES
        if protocol.min_reader_version > _READER_VERSION:
            raise self._unsupported(f"the reader version {protocol.min_reader_version}")
        if unknown:
            raise self._unsupported(f"the features {', '.join(sorted(unknown))}")
        if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
            raise self._unsupported("column mapping")
        if "deletionVectors" in features and self._has_deletion_vectors(table):
            raise self._unsupported(
                "deletion vectors; remove them with REORG TABLE … APPLY (PURGE) or OPTIMIZE"
            )

    def _has_deletion_vectors(self, table: Any) -> bool:
        try:
            return any(batch.num_rows for batch in table.deletion_vectors())
        except Exception:  # an invalid deletion vector is one, too
            return True

    def _unsupported(self, feature: str) -> DatasetError:
        return DatasetError(
            f"the Delta table {self.location} uses {feature}, which is not supported"
        )


def _import_deltalake(location: str) -> Any:
    try:
        deltalake = import_module("deltalake")
        import_module("deltalake.exceptions")
    except ImportError:
        raise MissingExtraError(
            f"{location} is a Delta table, which needs the extra delta: "
            "pip install 'splitarrow[delta]'"
        ) from None
    return deltalake
