"""Opening the tracer that the settings describe, with the packages of its extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import MissingExtraError
from ..config import ServerSettings
from ..logs import get_logger
from .endpoint import find_endpoint

if TYPE_CHECKING:
    from .tracer import Tracer
else:
    Tracer = object


def open_tracer(settings: ServerSettings, process: str) -> Tracer | None:
    """Return the tracer of a process; None if the server records no traces.

    Parameters
    ----------
    settings : ServerSettings
        The settings of the server.
    process : str
        The name of the process, as in metrics.

    Raises
    ------
    ConfigError
        If the setting is not the URL of a collector.
    MissingExtraError
        If the setting is given and the extra ``otel`` is not installed.
    """
    endpoint, reason = find_endpoint(settings)
    if reason is not None:
        get_logger("daemon").warning("no traces are recorded", reason=reason)
    if endpoint is None:
        return None
    try:
        from .tracer import Tracer
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("splitarrow"):
            raise
        message = (
            f"{endpoint.source}: traces need the package {error.name}, which is not installed; "
            "run: pip install 'splitarrow[otel]'"
        )
        if endpoint.url is not None:
            raise MissingExtraError(message) from None
        get_logger("daemon").warning("no traces are recorded", reason=message)
        return None
    return Tracer(endpoint.url, process)
