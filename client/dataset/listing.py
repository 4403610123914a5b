"""The datasets of servers: what the clients of one daemon and of a cluster list and describe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ...errors import NotFoundError
from ...protocol.request import Request
from ..rpc.info import DatasetInfo
from .requests import build_request


class DatasetListing(ABC):
    """Lists and describes datasets."""

    @property
    @abstractmethod
    def uri(self) -> str:
        """The address of the control plane; several are separated by commas."""

    @abstractmethod
    def datasets(self, glob: str | None = None) -> list[DatasetInfo]:
        """List the datasets that the caller may read."""

    @abstractmethod
    def describe(self, request: Request) -> DatasetInfo:
        """Describe the selection of a dataset that a request makes."""

    @abstractmethod
    def schema(self, name: str) -> pa.Schema:
        """Return the schema of a dataset."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Return the figures of the server."""

    def info(self, name: str) -> DatasetInfo:
        """Describe a dataset: rows, bytes, schema, version and endpoints.

        Raises
        ------
        NotFoundError
            If no such dataset exists.
        """
        return self.describe(build_request(name))

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and bool(self.info(name).name)
        except NotFoundError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter([info.name for info in self.datasets()])
