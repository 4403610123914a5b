"""Errors as readers see them: they name the dataset, and no path of the server.

The log has the paths.
"""

from __future__ import annotations

import re

from ..errors import DatasetError, ExhaustedError, LimitError, SplitArrowError

_DESCRIBES_DATA = (DatasetError, ExhaustedError, LimitError)
"""The errors that may contain paths. The others quote the request of the reader."""
_BEFORE, _AFTER = r"(?<![\w./:-])", r"(?=[\s:;,'\")]|$)"
_LOCATION = re.compile(rf"{_BEFORE}(?:[a-z][a-z0-9+.-]*:/)?(?:/[^\s/:;,'\"()]+)*/([^\s/:;,'\"()]+)")
"""An absolute path or a URL. The group is its last segment."""


def describe_for_reader(error: SplitArrowError, dataset: str | None, location: str | None) -> str:
    """Return the text of an error without paths of the server.

    A file in the folder of the dataset keeps its path within the folder, other files keep their
    names.

    Parameters
    ----------
    error : SplitArrowError
        The error.
    dataset : str or None
        The dataset that the reader requested. The text names it.
    location : str or None
        The path or the URL of the dataset.

    Examples
    --------
    >>> error = DatasetError("cannot read /data/flights/1.arrow: Input/output error")
    >>> describe_for_reader(error, "flights", "/data/flights")
    "cannot read 1.arrow: Input/output error (dataset 'flights')"
    """
    text = str(error)
    name = repr(dataset or error.stream)
    if isinstance(error, _DESCRIBES_DATA):
        if location and "/" in location:  # a single word may be any word of the text
            root = re.escape(location.rstrip("/"))
            text = re.sub(rf"{_BEFORE}{root}/", "", text)
            text = re.sub(rf"{_BEFORE}(['\"]?){root}\1{_AFTER}", lambda _: f"dataset {name}", text)
        text = _LOCATION.sub(r"\1", text)
    return text if dataset is None or name in text else f"{text} (dataset {name})"
