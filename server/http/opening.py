"""Opening the HTTP listener that the settings describe, with the packages of its extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import MissingExtraError
from ..config import ServerSettings
from .address import http_uri

if TYPE_CHECKING:
    from .listener import HttpListener


def open_http_listener(settings: ServerSettings) -> HttpListener | None:
    """Return the HTTP listener of a server, which serves already; None if it has none.

    Raises
    ------
    ConfigError
        If its address cannot be used.
    MissingExtraError
        If the extra ``http`` is not installed.
    """
    uri = http_uri(settings)
    if uri is None:
        return None
    try:
        from .listener import HttpListener
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("splitarrow"):
            raise
        raise MissingExtraError(
            f"http: the HTTP listener needs the package {error.name}, which is not installed; "
            "run: pip install 'splitarrow[http]'"
        ) from None
    return HttpListener(settings, uri)
