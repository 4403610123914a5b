"""From errors to gRPC statuses."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from ...errors import ClosedError, ConfigError, SplitArrowError, UsageError, status_name
from ..reader_errors import describe_for_reader

_MAX_MESSAGE_CHARACTERS = 1000
"""gRPC sends the message in a header. It drops headers over 8 KiB, and the status with them."""


def grpc_status(
    error: SplitArrowError, subject: str | None, location: str | None = None
) -> tuple[grpc.StatusCode, str]:
    """Return the status code and the message for an error.

    Parameters
    ----------
    error : SplitArrowError
        The error.
    subject : str or None
        The dataset of the call. The message names it.
    location : str or None
        The path or URL of that dataset. The message does not name it.
    """
    if isinstance(error, ClosedError):
        code = "UNAVAILABLE"
    elif isinstance(error, ConfigError):
        code = "FAILED_PRECONDITION"
    elif isinstance(error, UsageError):
        code = "INVALID_ARGUMENT"
    else:
        code = status_name(error)
    text = describe_for_reader(error, error.stream or subject, location)
    if len(text) > _MAX_MESSAGE_CHARACTERS:
        text = text[: _MAX_MESSAGE_CHARACTERS - 1] + "…"
    return getattr(grpc.StatusCode, code, grpc.StatusCode.UNKNOWN), text


def flatten_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, or the errors in a group and in the groups within it."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from flatten_errors(inner)
    else:
        yield error
