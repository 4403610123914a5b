"""Reloading: applying a changed configuration to a running daemon."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError, SplitArrowError
from ..reloadable import check_files_now
from .config import Configuration, Reload, ServerSettings, declarations
from .context import ServerContext
from .logs import get_logger, set_log_level
from .preflight import check_services, describe_error

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
    """Applies changed settings to a running daemon, all of them or none.

    Parameters
    ----------
    context : ServerContext
        The state of the server. Its settings are replaced.
    configuration : Configuration, optional
        The sources of the settings. Without it, the settings stay the same, and only datasets and
        files are read again.
    """

    def __init__(self, context: ServerContext, configuration: Configuration | None = None) -> None:
        self._context = context
        self._configuration = configuration
        self._lock = threading.Lock()
        self._log = get_logger("daemon")
        self.listeners: list[Callable[[], None]] = []
        """Called after each reload, on its thread."""
        self.followers: list[Callable[[ServerSettings], None]] = []
        """Called with the checked settings before they apply here. They apply them elsewhere."""

    def reload(self) -> ReloadReport:
        """Read the configuration again and apply it. Call this on a worker thread.

        Returns
        -------
        ReloadReport
            The changes.

        Raises
        ------
        ConfigError
            If something is wrong. Everything then stays as it was.
        """
        with self._lock:
            configuration = self._configuration or Configuration()
            try:
                settings = (
                    self._context.settings if self._configuration is None else configuration.load()
                )
                report = self._apply(settings)
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

    def apply(self, settings: ServerSettings) -> ReloadReport:
        """Apply other settings; see `reload`.

        Raises
        ------
        ConfigError, DatasetError, UsageError, MissingExtraError
            If something is wrong. Everything then stays as it was.
        """
        with self._lock:
            return self._apply(settings)

    def _apply(self, settings: ServerSettings) -> ReloadReport:
        before, context = self._context.settings, self._context
        restart, applied = _split_changes(before, settings)
        after = before.model_copy(update={name: getattr(settings, name) for name in applied})
        check_services(settings)
        apply_access = context.access.load(after)
        removed = [name for name in before.datasets if name not in after.datasets]
        serve_datasets = context.catalog.prepare_update(after.datasets, removed)
        for follow in self.followers:
            follow(after)
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
            self._log.warning("some settings have changed but need a restart", settings=restart)
        return report


def _split_changes(before: ServerSettings, after: ServerSettings) -> tuple[list[str], list[str]]:
    """Return the names of changed settings: those that need a restart, and the others."""
    restart: list[str] = []
    applied: list[str] = []
    for declaration in declarations(ServerSettings):
        name, when = declaration.name, declaration.setting.reload
        old, new = getattr(before, name), getattr(after, name)
        if old == new:
            continue
        is_swap = name in _ACCESS and None not in (old, new)
        (applied if when is Reload.RELOAD or is_swap else restart).append(name)
    return restart, applied
