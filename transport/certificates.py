"""Certificates and keys of TLS: which files, and the contexts that are made of them."""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

from ..errors import ConfigError, SplitArrowError, UsageError
from .watched import Watched

_PREFIX = "SPLITARROW_TLS_"
_log = logging.getLogger("splitarrow.tls")

_File = str | os.PathLike[str] | None


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """What a client of TLS trusts, and what it shows. It is valid once built."""

    ca_file: _File = None
    """Certificates of the authorities that are trusted, in PEM; None: those of the system."""
    cert_file: _File = None
    """The client's own certificate, with those between it and its authority, in PEM."""
    key_file: _File = None
    """The key of `cert_file`; None: it is in the same file."""
    server_name: str | None = None
    """The name that the server's certificate has to have; None: the host of the URI."""
    check_name: bool = True
    """Whether the name is checked at all. Without it any certificate of `ca_file` will do."""

    def __post_init__(self) -> None:
        if self.key_file is not None and self.cert_file is None:
            raise UsageError("key_file goes with a cert_file")
        if not self.check_name and self.ca_file is None:
            raise UsageError("check_name=False asks for a ca_file of your own")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> TlsOptions:
        """Return what ``SPLITARROW_TLS_CA``, ``_CERT``, ``_KEY`` and ``_SERVER_NAME`` say."""
        names = (_PREFIX + name for name in ("CA", "CERT", "KEY", "SERVER_NAME"))
        given = os.environ if environ is None else environ
        ca_file, cert_file, key_file, server_name = (given.get(name) or None for name in names)
        return cls(ca_file, cert_file, key_file if cert_file else None, server_name)


@dataclass(frozen=True, slots=True)
class TlsServerOptions:
    """What a server of TLS shows, and whom it lets in."""

    cert_file: _File
    """The server's certificate, with those between it and its authority, in PEM."""
    key_file: _File = None
    """The key of `cert_file`; None: it is in the same file."""
    client_ca_file: _File = None
    """Authorities one of which a client's certificate has to come from; None: it needs none."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> TlsServerOptions | None:
        """Return what ``SPLITARROW_TLS_CERT``, ``_KEY`` and ``_CLIENT_CA`` say, if anything."""
        names = (_PREFIX + name for name in ("CERT", "KEY", "CLIENT_CA"))
        given = os.environ if environ is None else environ
        cert_file, key_file, client_ca_file = (given.get(name) or None for name in names)
        return None if cert_file is None else cls(cert_file, key_file, client_ca_file)


class _EncryptedKeyError(Exception):
    pass


@lru_cache(64)
def client_contexts(options: TlsOptions) -> Watched[ssl.SSLContext]:
    """Return the context for a client's options, made anew when a file has changed.

    Raises
    ------
    UsageError
        If a file cannot be used; the error names it.
    """
    return Watched(
        _paths(options.ca_file, options.cert_file, options.key_file),
        lambda: client_context(options),
        on_failure=_not_taken_over,
    )


def server_contexts(
    options: TlsServerOptions, *, clock: Callable[[], float] = time.monotonic
) -> Watched[ssl.SSLContext]:
    """Return the context for a server's options, made anew when a file has changed.

    Parameters
    ----------
    options : TlsServerOptions
        Which files.
    clock : callable
        The time in seconds, from any start.

    Raises
    ------
    ConfigError
        If a file cannot be used; the error names it.
    """
    return Watched(
        _paths(options.cert_file, options.key_file, options.client_ca_file),
        lambda: server_context(options),
        on_failure=_not_taken_over,
        clock=clock,
    )


def client_context(options: TlsOptions) -> ssl.SSLContext:
    """Return a context for a client: TLS 1.3, and a server that proves its name.

    Raises
    ------
    UsageError
        If a file cannot be used; the error names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = options.check_name
    context.hostname_checks_common_name = False
    if options.ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, options.ca_file, UsageError)
    if options.cert_file is not None:
        _load_own(context, options.cert_file, options.key_file, UsageError)
    return context


def server_context(options: TlsServerOptions) -> ssl.SSLContext:
    """Return a context for a server: TLS 1.3, and clients that prove who they are if asked to.

    Raises
    ------
    ConfigError
        If a file cannot be used; the error names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # a session is not resumed, and nothing is sent unasked
    _load_own(context, options.cert_file, options.key_file, ConfigError)
    if options.client_ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _load_authorities(context, options.client_ca_file, ConfigError)
    return context


def _paths(*files: _File) -> list[Path]:
    return [Path(file) for file in files if file is not None]


def _not_taken_over(reason: str) -> None:
    _log.error("certificates not reloaded; the old ones stay: %s", reason)


def _load_authorities(
    context: ssl.SSLContext, file: str | os.PathLike[str], kind: type[SplitArrowError]
) -> None:
    _check_readable(file, kind)
    try:
        context.load_verify_locations(cafile=file)
    except OSError:
        raise kind(f"{file}: no certificates of authorities in PEM") from None
    if not context.get_ca_certs():
        raise kind(f"{file}: none of its certificates is an authority's")


def _load_own(
    context: ssl.SSLContext, cert_file: _File, key_file: _File, kind: type[SplitArrowError]
) -> None:
    assert cert_file is not None
    for file in _paths(cert_file, key_file):
        _check_readable(file, kind)
    key = cert_file if key_file is None else key_file
    try:
        context.load_cert_chain(cert_file, key_file, password=_ask_nobody)
    except _EncryptedKeyError:
        raise kind(f"{key}: the key is encrypted; a server cannot ask for its password") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise kind(f"{key}: the key is not that of the certificate {cert_file}") from None
        raise kind(f"{cert_file}, {key}: no certificate with its key in PEM") from None


def _check_readable(file: str | os.PathLike[str], kind: type[SplitArrowError]) -> None:
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise kind(f"cannot read {file}: {error.strerror}") from None


def _ask_nobody() -> NoReturn:
    raise _EncryptedKeyError
