"""Settings that have no effect, because another setting is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .declaration import declarations
from .settings import ServerSettings

_REGION_SETTINGS = (
    "shm_cache",
    "vortex_cache",
    "shm_copy",
    "shm_trust",
    "max_leased",
    "lease_seconds",
)
"""The settings of memory that readers map or read remotely."""
_TLS_ADDRESSES = (
    "a tcp+tls:// listener",
    "a grpc+tls:// control plane",
    "an https:// listener for HTTP",
)


def ineffective_settings(settings: ServerSettings) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the name of each setting without effect, and what it needs: one of several things.

    Only settings that differ from their defaults count.

    Parameters
    ----------
    settings : ServerSettings
        The settings.
    """
    changed = [one for one in declarations(ServerSettings) if _is_changed(settings, one.name)]
    for declaration in changed:
        needs = declaration.setting.needs
        if needs and not any(getattr(settings, name) for name in needs):
            yield declaration.name, needs
    names = {declaration.name for declaration in changed}
    if "tls_cert" in names and not _has_tls_listener(settings):
        yield "tls_cert", _TLS_ADDRESSES
    if "shm_users" in names and not _listens_on(settings, "shm"):
        yield "shm_users", ("an shm:// listener",)
    if not _listens_on(settings, "shm", "ucx"):
        for name in _REGION_SETTINGS:
            if name in names:
                yield name, ("an shm:// listener", "a ucx:// listener")


def _is_changed(settings: ServerSettings, name: str) -> bool:
    return getattr(settings, name) != ServerSettings.model_fields[name].default


def _has_tls_listener(settings: ServerSettings) -> bool:
    services = ((settings.control or "").lower(), (settings.http or "").lower())
    return _listens_on(settings, "tcp+tls") or any(
        uri.startswith(("grpc+tls:", "https:")) for uri in services
    )


def _listens_on(settings: ServerSettings, *schemes: str) -> bool:
    return any(text.partition(":")[0].lower() in schemes for text in settings.listen)
