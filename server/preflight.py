"""Checks of a configuration that start nothing: before a reload, and for ``check-config``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from ..errors import ConfigError, SplitArrowError
from ..transport.tls_options import TlsServerOptions, build_server_context
from .auth.access_control import AccessControl
from .catalog.catalog import open_dataset
from .catalog.published.object_cache import open_object_cache
from .config import Configuration, ServerSettings
from .config.uris import listener_uri
from .control.address import control_uri
from .http.address import http_uri
from .tracing import check_endpoint


def check_configuration(configuration: Configuration) -> tuple[ServerSettings | None, list[str]]:
    """Return the settings, and every problem that a server would meet when it starts.

    It opens the datasets and reads the tokens, keys and certificates. It binds no address.

    Parameters
    ----------
    configuration : Configuration
        The sources of the settings.

    Returns
    -------
    tuple
        The settings, or None if they cannot be loaded; and one sentence for each problem.
    """
    try:
        settings = configuration.load()
    except ConfigError as error:
        return None, [error.message]
    return settings, list(_find_problems(settings, configuration))


def check_services(settings: ServerSettings) -> None:
    """Read the tokens, keys and certificates, and check that the addresses are protected.

    Raises
    ------
    ConfigError, UriError, MissingExtraError
        If something that the settings name cannot be used.
    """
    with closing(AccessControl.from_settings(settings)) as access:
        if settings.tls_cert is not None:
            build_server_context(
                TlsServerOptions(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
            )
        access.check_exposure(
            [listener_uri(text) for text in settings.listen],
            control_uri(settings),
            client_certificates=settings.tls_client_ca is not None,
            insecure=settings.insecure,
        )
        http_uri(settings)
        check_endpoint(settings)


def describe_error(error: SplitArrowError, configuration: Configuration) -> str:
    """Return the sentence for an error; for a dataset's, with the place that names the dataset."""
    if error.stream is None:
        return str(error)
    return f"{configuration.locate('datasets', error.stream)}: {error.message}"


def _find_problems(settings: ServerSettings, configuration: Configuration) -> Iterator[str]:
    if not settings.datasets and settings.writable is None:
        yield f"{configuration.file}: nothing to serve: name a dataset under [datasets]"
    try:
        check_services(settings)
    except SplitArrowError as error:
        yield str(error)
    cache = open_object_cache(settings)
    for name, source in settings.datasets.items():
        try:
            open_dataset(source, cache, refuse_writers=not settings.allow_writers).close()
        except SplitArrowError as error:
            error.stream = name
            yield describe_error(error, configuration)
