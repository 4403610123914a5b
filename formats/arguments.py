"""Checks of the arguments that users pass. They raise `UsageError` with the name and the value."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, cast, get_args

from ..errors import SplitArrowError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

_END = 1 << 63
_MAX_SECONDS = 10**8
"""Three years. The clocks of the system and of gRPC overflow with more."""


def check_integer(name: str, value: Any, least: int, end: int = _END) -> int:
    """Return an integer, also of NumPy or a tensor, that is at least `least` and below `end`."""
    expected = f"{least} or more" if end == _END else f"{least} to {end - 1}"
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        refuse(name, value, f"an integer, {expected}")
    try:
        number = operator.index(value)
    except TypeError:  # an array of several numbers
        refuse(name, value, f"an integer, {expected}")
    if not least <= number < end:
        refuse(name, value, expected)
    return number


def check_seconds(name: str, value: Any, *, optional: bool = False) -> None:
    """Check a time limit, which is more than 0 seconds; it may be None if it is `optional`."""
    if value is None:
        if optional:
            return
        refuse(name, value, "more than 0 seconds")
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= _MAX_SECONDS:
        or_none = ", or None" if optional else ""
        refuse(name, value, f"more than 0 and at most {_MAX_SECONDS} seconds{or_none}")


def check_text(name: str, value: Any) -> str:
    """Return a string that can be encoded in UTF-8."""
    if not isinstance(value, str) or not _is_unicode(value):
        refuse(name, value, "a string of Unicode text")
    return value


def check_texts(name: str, value: Any) -> dict[str, str]:
    """Return a mapping of strings to strings."""
    if not isinstance(value, Mapping):
        refuse(name, value, "a mapping of strings to strings")
    items = cast("Mapping[Any, Any]", value).items()
    return {
        check_text(f"a key in {name}", key): check_text(f"a value in {name}", each)
        for key, each in items
    }


def check_choice(name: str, value: Any, choices: Any) -> Any:
    """Return a value that is one of the texts of a `Literal` or an iterable."""
    texts: Any = get_args(choices) or choices
    if not isinstance(value, str) or value not in texts:
        refuse(name, value, ", ".join(texts))
    return value


def check_function(name: str, value: Any) -> Any:
    """Return a function or None."""
    if value is not None and not callable(value):
        refuse(name, value, "a function, or None")
    return value


def check_path(name: str, value: Any) -> str:
    """Return the text of a path that the system can look up."""
    convert = getattr(type(value), "__fspath__", None)
    path = value if convert is None else convert(value)
    try:
        if isinstance(path, str) and b"\0" not in path.encode(errors="surrogateescape"):
            return path
    except UnicodeEncodeError:
        pass
    refuse(name, value, "a path")


def check_column(name: str, value: Any) -> Any:
    """Return an array or a chunked array of pyarrow."""
    import pyarrow as pa

    if not isinstance(value, pa.Array | pa.ChunkedArray):
        refuse(name, value, "a pyarrow.Array or ChunkedArray")
    return value


def check_type(name: str, value: Any, *, optional: bool = False) -> Any:
    """Return a type of pyarrow; it may be None if it is `optional`."""
    import pyarrow as pa

    if not (isinstance(value, pa.DataType) or (optional and value is None)):
        refuse(name, value, "a pyarrow.DataType" + (", or None" if optional else ""))
    return value


def import_stream(source: Any) -> pa.RecordBatchReader:
    """Return a reader of an object with Arrow's C interface for streams or arrays."""
    import pyarrow as pa

    try:
        if hasattr(source, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(source)
        batch = pa.record_batch(source)
        return pa.RecordBatchReader.from_batches(batch.schema, [batch])
    except SplitArrowError:
        raise
    except Exception as error:  # the package of the source raises many types
        reason = " ".join(str(each) for each in error.args) or type(error).__name__
        raise UsageError(
            f"cannot convert a {type(source).__name__} to Arrow: {reason}; expected columns of "
            "one type each"
        ) from None


def list_items(name: str, value: Any, expected: str) -> list[Any]:
    """Return the items of an iterable that is not a string."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        refuse(name, value, expected)
    return list(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def refuse(name: str, value: Any, expected: str) -> NoReturn:
    """Raise `UsageError` for the value of an argument."""
    shown = repr(value)
    if len(shown) > 80 or "\n" in shown:
        shown = f"a {type(value).__name__}"
    raise UsageError(f"{name} is {shown}; expected {expected}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
