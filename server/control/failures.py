"""Which gRPC status tells a client of which error, and in which words."""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from ...errors import ClosedError, ConfigError, SplitArrowError, UsageError
from ..session import failure_code

_MOST_TEXT = 1000
"""Status messages travel in a header; gRPC drops headers over 8 KiB, and the status with them."""


def status_of(error: SplitArrowError, subject: str | None) -> tuple[grpc.StatusCode, str]:
    """Return the status and its message for an error.

    Parameters
    ----------
    error : SplitArrowError
        What went wrong.
    subject : str or None
        The dataset that the call is about. The message names it.
    """
    if isinstance(error, ClosedError):
        code = "UNAVAILABLE"
    elif isinstance(error, ConfigError):
        code = "FAILED_PRECONDITION"
    elif isinstance(error, UsageError):
        code = "INVALID_ARGUMENT"
    else:
        code = failure_code(error)
    text = str(error)
    subject = error.stream or subject
    if subject and repr(subject) not in text:
        text = f"{text} (dataset {subject!r})"
    if len(text) > _MOST_TEXT:
        text = text[: _MOST_TEXT - 1] + "…"
    return getattr(grpc.StatusCode, code, grpc.StatusCode.UNKNOWN), text


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that are in an error, or in a group of groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
