"""Files with tensors: messages of Arrow IPC, and arrays of NumPy (``.npy``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ....errors import DatasetError, InvalidDataError
from ....formats.arrow.tensors.encoding import add_name, encode_metadata
from ....formats.arrow.tensors.files import (
    MAX_HEADER_BYTES,
    TensorMessage,
    read_npy_header,
    scan_tensors,
)
from ....formats.arrow.tensors.labels import TENSOR_SCHEMA, Labels
from ....formats.arrow.tensors.layout import AnyLayout
from ....protocol.request import Request
from ....protocol.splitter import SourceMessage
from ....transport.memory.files import SourceFile
from ..dataset import (
    Encoding,
    GeneratorSource,
    Measures,
    MessageGroups,
    check_version,
    hash_version,
    select_shards,
)
from ..messages.message_index import REGION_BYTES
from ..messages.reencoding import Batches
from ..selection import Selection
from ..tensors import (
    check_tensor_request,
    describe_tensors,
    make_schema_message,
    refuse_counting,
    select_tensors,
)
from .file_dataset import FileContents, FileDataset
from .origins import Identity, map_read_errors


class TensorFileDataset(FileDataset):
    """A dataset in a file with Tensor and SparseTensor messages."""

    _kind = "tensor file"
    _file_type = "a file with tensors"

    def read_tensors(self, file: SourceFile) -> list[TensorMessage]:
        """Return the tensors in the file; raise `ProtocolError` if it is malformed."""
        found = list(scan_tensors(file.read, file.size))
        if len(found) == 1 and found[0].labels.name is None:
            only = found[0]
            metadata, labels = add_name(only.metadata, only.layout, only.labels, self._file_name())
            return [only._replace(metadata=metadata, labels=labels)]
        return found

    def inspect(self, file: SourceFile) -> FileContents:
        """Return the contents of the file. Their plan is the list of its tensors."""
        if self.origin.is_remote:
            raise DatasetError(f"{self.path}: tensors in object stores are not supported")
        with map_read_errors(file.path, self._file_type):
            tensors = self.read_tensors(file)
        return FileContents(file.version, TENSOR_SCHEMA, file.size, plan=tensors)

    def read_batches(
        self, file: SourceFile, contents: FileContents, selection: Selection
    ) -> Batches:
        """Refuse: tensors are no record batches."""
        raise DatasetError(f"{self.path} holds tensors, which are no record batches")

    @property
    def rows(self) -> int | None:
        """None: tensors have no rows."""
        return None

    def list_tensors(self) -> list[tuple[AnyLayout, Labels]]:
        """Return the layout and the labels of each tensor."""
        tensors: list[TensorMessage] = self._contents.plan
        return [(tensor.layout, tensor.labels) for tensor in tensors]

    @property
    def app_metadata(self) -> Mapping[str, Any]:
        """The descriptions of the tensors."""
        return describe_tensors(self.list_tensors())

    def open(self, request: Request, encoding: Encoding) -> GeneratorSource:
        """Open the file for one reader; see `ServedDataset.open`."""
        with closing(self.open_file()) as file:
            check_version(request, hash_version(file.version))
        select_shards(request, (self,))
        return open_tensor_files([self], request, encoding)

    def measure_batches(self, request: Request, encoding: Encoding) -> Measures:
        """Refuse: tensors have no rows."""
        del encoding
        raise refuse_counting(request)

    def _file_name(self) -> str:
        return str(PurePosixPath(self.origin.name).with_suffix(""))


class NpyDataset(TensorFileDataset):
    """A dataset in a file with one array, as ``numpy.save`` writes it."""

    _kind = "npy file"
    _file_type = "an array of NumPy"

    def read_tensors(self, file: SourceFile) -> list[TensorMessage]:
        """Return the array as a tensor, whose body is the rest of the file."""
        header = read_npy_header(file.read(0, min(file.size, MAX_HEADER_BYTES)))
        size = header.data_offset + header.layout.body_length
        if size != file.size:
            raise InvalidDataError(
                f"an array of the shape {header.layout.shape} needs {size} bytes; the file has "
                f"{file.size}"
            )
        labels = Labels(self._file_name(), header.label)
        metadata = encode_metadata(header.layout, labels)
        place = (header.data_offset, header.is_big_endian)
        return [TensorMessage(0, metadata, header.layout, labels, *place)]


def open_tensor_files(
    datasets: Sequence[TensorFileDataset], request: Request, encoding: Encoding
) -> GeneratorSource:
    """Open the tensors of several files for one reader, in order; see `ServedDataset.open`.

    The caller has checked the version and the shard of the request.

    Raises `DatasetError` if a file is not readable, or its byte order differs from that of the
    first one. Raises `InvalidRequestError` if the request selects something else than tensors.
    """
    check_tensor_request(request)
    places: list[_Place] = []
    is_big_endian: bool | None = None
    for dataset in datasets:
        with closing(dataset.open_file()) as file:
            tensors: list[TensorMessage] = dataset.load_contents(file).plan
            order = any(tensor.is_big_endian for tensor in tensors)
            is_big_endian = order if is_big_endian is None else is_big_endian
            if order != is_big_endian:
                raise DatasetError(
                    f"{dataset.path} has another byte order than {datasets[0].path}; serve them as "
                    "datasets of their own"
                )
            places += [_Place(dataset, file.version, tensor) for tensor in tensors]
    selected = select_tensors(request, places)
    groups = _read_groups(selected, regions=encoding.regions, is_big_endian=bool(is_big_endian))
    paths = dict.fromkeys(Path(place.dataset.path) for place in selected)
    return GeneratorSource(
        groups, blocking=False, region_files=list(paths) if encoding.regions else ()
    )


class _Place(NamedTuple):
    """A tensor, and the state of the file that has it."""

    dataset: TensorFileDataset
    identity: Identity
    tensor: TensorMessage


def _read_groups(places: Sequence[_Place], *, regions: bool, is_big_endian: bool) -> MessageGroups:
    yield [make_schema_message(is_big_endian=is_big_endian)]
    for dataset, in_file in groupby(places, lambda place: place.dataset):
        with closing(dataset.open_file()) as file:
            for _, identity, tensor in in_file:
                if file.version != identity:
                    raise DatasetError(f"{dataset.path} changed while it was read")
                yield [_read_message(file, tensor, regions=regions)]
                file.check()


def _read_message(file: SourceFile, tensor: TensorMessage, *, regions: bool) -> SourceMessage:
    """Return the message of a tensor. A large body stays in the file, and so does any region."""
    begin, nbytes = tensor.body_offset, tensor.layout.body_length
    if regions:
        file.require_regions()
    is_span = regions or nbytes >= REGION_BYTES
    body = file.part(begin, nbytes) if is_span else file.read(begin, nbytes)
    file.check()
    return SourceMessage(tensor.metadata, (body,), nbytes)
