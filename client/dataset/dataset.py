"""A dataset of a control plane, as an object: it can be read several times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...formats.arrow.tensors.sparse_tensor import AnyTensor
from ..rpc.info import DatasetInfo

if TYPE_CHECKING:
    from .dataset_stream import DatasetStream


class Dataset:
    """A dataset of a control plane. Each method that reads opens a new stream.

    ``client["flights"]`` and `Client.dataset` return it. The length is the number of rows, and
    iteration yields record batches. A dataset is also an Arrow C stream, which other libraries
    import directly: ``polars.DataFrame(client["flights"])``.

    Parameters
    ----------
    read : callable
        The method `read` of the client, which must stay open while the dataset is used.
    info : DatasetInfo
        The description of the dataset, as `Client.info` returned it.

    Examples
    --------
    >>> import pyarrow, splitarrow
    >>> flights = pyarrow.table({"carrier": ["AA", "BB", "CC"], "delay": [1, 70, 99]})
    >>> server = splitarrow.serve({"flights": flights}, control="grpc://127.0.0.1:0")
    >>> with server, splitarrow.connect(server.control_uri) as client:
    ...     "flights" in client, len(client["flights"])
    ...     client["flights"].head(1).to_pydict()
    ...     client["flights"].to_arrow(filter="delay > 60", columns="carrier").to_pydict()
    (True, 3)
    {'carrier': ['AA'], 'delay': [1]}
    {'carrier': ['BB', 'CC']}
    """

    def __init__(self, read: Callable[..., DatasetStream], info: DatasetInfo) -> None:
        self._read = read
        self.info = info
        """The description of the dataset at the time of the lookup."""

    @property
    def name(self) -> str:
        """The name of the dataset."""
        return self.info.name

    @property
    def schema(self) -> pa.Schema:
        """The schema of the dataset."""
        return self.info.schema

    def read(self, **options: Any) -> DatasetStream:
        """Open the dataset for reading; the options are those of `Client.read`."""
        return self._read(self.name, **options)

    def head(self, rows: int = 5, **options: Any) -> pa.Table:
        """Return the first rows as a table; the options are those of `Client.read`."""
        with self.read(limit=rows, **options) as stream:
            return stream.read_all()

    def to_arrow(self, **options: Any) -> pa.Table:
        """Read into a ``pyarrow.Table``; the options are those of `Client.read`."""
        with self.read(**options) as stream:
            return stream.read_all()

    def to_pandas(self, **options: Any) -> Any:
        """Read into a ``pandas.DataFrame``; the options are those of `Client.read`."""
        with self.read(**options) as stream:
            return stream.to_pandas()

    def to_polars(self, **options: Any) -> Any:
        """Read into a ``polars.DataFrame``; the options are those of `Client.read`."""
        with self.read(**options) as stream:
            return stream.to_polars()

    def to_numpy(self, **options: Any) -> dict[str, Any]:
        """Read into NumPy arrays by column; the options are those of `Client.read`."""
        with self.read(**options) as stream:
            return stream.to_numpy()

    def read_tensor(self, **options: Any) -> AnyTensor:
        """Return the only tensor of the dataset; the options are those of `Client.read`."""
        with self.read(**options) as stream:
            return stream.read_tensor()

    def to_duckdb(self, connection: Any = None, **options: Any) -> Any:
        """Read into a table, and return a DuckDB relation; see `BatchStream.to_duckdb`."""
        with self.read(**options) as stream:
            return stream.to_duckdb(connection)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with self.read() as stream:
            yield from stream

    def __len__(self) -> int:
        if self.info.rows is None:
            raise TypeError(
                f"the server does not know the number of rows of {self.name!r}; read it to count"
            )
        return self.info.rows

    def __bool__(self) -> bool:
        return True

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """Read the dataset through the Arrow C stream interface."""
        return self.read().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return repr(self.info).replace("DatasetInfo", "Dataset", 1)

    def _repr_html_(self) -> str:
        return self.info._repr_html_()  # pyright: ignore[reportPrivateUsage]
