"""Reloading: checking a changed configuration, and applying it to a running daemon.

SIGHUP and the action ``reload`` apply all changes or none. ``splitarrow check-config`` makes the
same checks and starts nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError, SplitArrowError
from ..transport.credential_files import check_files_now
from ..transport.tls_options import build_server_context
from .addresses import control_uri, http_uri
from .auth.access_control import AccessControl
from .catalog.catalog import open_dataset, source_options
from .catalog.object_cache import open_object_cache
from .config import Configuration, Reload, Settings, declarations
from .config.settings import listener_uri
from .context import ServerContext
from .logs import get_logger, set_log_level
from .tracing import check_endpoint


def check_configuration(configuration: Configuration) -> tuple[Settings | None, list[str]]:
    """Return the settings, and a sentence for each problem that a server would meet at its start.

    It opens the datasets and reads the tokens, keys and certificates. It binds no address. The
    settings are None if they cannot be loaded.
    """
    try:
        settings = configuration.load()
    except ConfigError as error:
        return None, [error.message]
    return settings, list(_find_problems(settings, configuration))


def check_services(settings: Settings) -> None:
    """Read the tokens, keys and certificates, and check that the addresses are protected.

    Raises `SplitArrowError` if something that the settings name cannot be used.
    """
    with closing(AccessControl.from_settings(settings)) as access:
        if settings.tls is not None:
            build_server_context(settings.tls)
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


def _find_problems(settings: Settings, configuration: Configuration) -> Iterator[str]:
    if not settings.datasets and settings.writable is None:
        yield f"{configuration.file}: nothing to serve: name a dataset under [datasets]"
    try:
        check_services(settings)
    except SplitArrowError as error:
        yield str(error)
    cache = open_object_cache(settings)
    for name, source in settings.datasets.items():
        try:
            open_dataset(source, cache, **source_options(settings)).close()
        except SplitArrowError as error:
            error.stream = name
            yield describe_error(error, configuration)


_ACCESS = ("token_file", "jwks", "ticket_key_file")
"""Settings whose value may change on a reload, as long as they stay set or stay unset."""


@dataclass(frozen=True)
class ReloadReport:
    """The outcome of a reload."""

    added: list[str] = field(default_factory=list[str])
    """The datasets that are new."""
    removed: list[str] = field(default_factory=list[str])
    """The datasets that are no longer served. Their running streams continue."""
    changed: list[str] = field(default_factory=list[str])
    """The other settings that have changed."""
    restart: list[str] = field(default_factory=list[str])
    """The settings that have changed, but apply after a restart only."""

    def as_json(self) -> dict[str, Any]:
        """Return the response of the action ``reload``."""
        return {"reloaded": True, **vars(self)}


class Reloader:
    """Applies changed settings to the context of a running daemon, all of them or none.

    Without a configuration, the settings stay the same, and only datasets and files are read again.
    """

    def __init__(self, context: ServerContext, configuration: Configuration | None = None) -> None:
        self._context = context
        self._configuration = configuration
        self._lock = threading.Lock()
        self._log = get_logger("daemon")
        self.listeners: list[Callable[[], None]] = []
        """Called after each reload, on its thread."""
        self.followers: list[Callable[[Settings], None]] = []
        """Called with the checked settings before they apply here. They apply them elsewhere, or
        raise `SplitArrowError`."""

    def reload(self) -> ReloadReport:
        """Read the configuration again and apply it. Call this on a worker thread.

        Raises `ConfigError` if something is wrong. Everything then stays as it was.
        """
        with self._lock:
            configuration = self._configuration or Configuration()
            try:
                settings = (
                    self._context.settings if self._configuration is None else configuration.load()
                )
                with self.prepare(settings) as apply:
                    report = apply()
            except SplitArrowError as error:
                text = describe_error(error, configuration)
                self._log.error("cannot reload; keeping the old configuration", reason=text)
                self._count(succeeded=False)
                raise ConfigError(text) from None
            for listener in self.listeners:
                listener()
            self._count(succeeded=True)
            return report

    def _count(self, *, succeeded: bool) -> None:
        metrics = self._context.daemon_metrics
        metrics.reloads["success" if succeeded else "failure",] += 1
        metrics.last_reload_successful = int(succeeded)
        if succeeded:
            metrics.last_reload_success_timestamp_seconds = time.time()

    @contextmanager
    def prepare(self, settings: Settings) -> Generator[Callable[[], ReloadReport]]:
        """Check changed settings, and yield a function that applies them.

        Raises `SplitArrowError` if something is wrong; see `reload`.
        """
        before, context = self._context.settings, self._context
        restart, applied = _split_changes(before, settings)
        after = before.model_copy(update={name: getattr(settings, name) for name in applied})
        check_services(settings)
        apply_access = context.access.load(after)
        removed = [name for name in before.datasets if name not in after.datasets]

        def apply() -> ReloadReport:
            serve_datasets()
            apply_access()
            check_files_now()
            if "log_level" in applied:
                set_log_level(after.log_level)
            context.settings = after
            report = ReloadReport(
                added=[name for name in after.datasets if name not in before.datasets],
                removed=removed,
                changed=[name for name in applied if name != "datasets"],
                restart=restart,
            )
            self._log.info("reloaded", datasets=context.catalog.names(), changed=report.changed)
            if restart:
                event = "some settings have changed but need a restart"
                self._log.warning(event, settings=restart)
            return report

        with context.catalog.prepare_update(after.datasets, removed) as serve_datasets:
            for follow in self.followers:
                follow(after)
            yield apply


def _split_changes(before: Settings, after: Settings) -> tuple[list[str], list[str]]:
    """Return the names of changed settings: those that need a restart, and the others."""
    restart: list[str] = []
    applied: list[str] = []
    for declaration in declarations(Settings):
        name, when = declaration.name, declaration.setting.reload
        old, new = getattr(before, name), getattr(after, name)
        if old == new:
            continue
        is_swap = name in _ACCESS and None not in (old, new)
        (applied if when is Reload.RELOAD or is_swap else restart).append(name)
    return restart, applied
