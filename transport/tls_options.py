"""Certificates and keys of TLS: the files, and the contexts built from them."""

from __future__ import annotations

import logging
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from ..errors import ConfigError, SplitArrowError, UsageError
from ..formats.arguments import check_path, check_text, refuse
from .credential_files import Reloadable

_PREFIX = "SPLITARROW_TLS_"
_log = logging.getLogger("splitarrow.tls")

_File = str | os.PathLike[str] | None


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The certificates that a client trusts and presents. It is valid once built.

    Raises
    ------
    UsageError
        If options that belong together are incomplete.
    """

    ca_file: _File = None
    """The trusted certificate authorities, in PEM. None trusts the system's authorities."""
    cert_file: _File = None
    """The client's certificate and the intermediate certificates, in PEM."""
    key_file: _File = None
    """The key of `cert_file`, in PEM. None if `cert_file` contains it."""
    server_name: str | None = None
    """The name that the server's certificate must have. None requires the host of the URI."""
    check_name: bool = True
    """Whether to check the name. If False, any certificate of `ca_file` is accepted."""

    def __post_init__(self) -> None:
        for name in ("ca_file", "cert_file", "key_file"):
            if (path := getattr(self, name)) is not None:
                check_path(name, path)
        if self.server_name is not None:
            check_text("server_name", self.server_name)
        if not isinstance(self.check_name, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            refuse("check_name", self.check_name, "True or False")
        if self.key_file is not None and self.cert_file is None:
            raise UsageError("key_file needs a cert_file")
        if not self.check_name and self.ca_file is None:
            raise UsageError("check_name=False needs a ca_file")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> TlsOptions:
        """Return the options of the environment.

        The variables are ``SPLITARROW_TLS_CA``, ``SPLITARROW_TLS_CERT``, ``SPLITARROW_TLS_KEY``
        and ``SPLITARROW_TLS_SERVER_NAME``.

        Parameters
        ----------
        environ : mapping, optional
            The variables. By default, those of the process.
        """
        names = (_PREFIX + name for name in ("CA", "CERT", "KEY", "SERVER_NAME"))
        variables = os.environ if environ is None else environ
        ca_file, cert_file, key_file, server_name = (variables.get(name) or None for name in names)
        return cls(ca_file, cert_file, key_file if cert_file else None, server_name)


def check_tls(tls: Any) -> None:
    """Raise `UsageError` if a caller's `tls` is neither `TlsOptions` nor None."""
    if tls is not None and not isinstance(tls, TlsOptions):
        raise UsageError(
            f"tls is {tls!r}; expected splitarrow.TlsOptions, as in "
            "TlsOptions(ca_file='authority.pem')"
        )


@dataclass(frozen=True, slots=True)
class TlsServerOptions:
    """The certificate of a server, and the clients that it accepts."""

    cert_file: _File
    """The server's certificate and the intermediate certificates, in PEM."""
    key_file: _File = None
    """The key of `cert_file`, in PEM. None if `cert_file` contains it."""
    client_ca_file: _File = None
    """The certificate authorities of clients, in PEM. None requires no client certificates."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> TlsServerOptions | None:
        """Return the options of the environment, or None if it names no certificate.

        The variables are ``SPLITARROW_TLS_CERT``, ``SPLITARROW_TLS_KEY`` and
        ``SPLITARROW_TLS_CLIENT_CA``.
        """
        names = (_PREFIX + name for name in ("CERT", "KEY", "CLIENT_CA"))
        variables = os.environ if environ is None else environ
        cert_file, key_file, client_ca_file = (variables.get(name) or None for name in names)
        return None if cert_file is None else cls(cert_file, key_file, client_ca_file)


class _EncryptedKeyError(Exception):
    pass


@lru_cache(64)
def load_client_context(options: TlsOptions) -> Reloadable[ssl.SSLContext]:
    """Return the context for a client's options, which is rebuilt when a file changes."""
    return Reloadable(
        _list_paths(options.ca_file, options.cert_file, options.key_file),
        lambda: build_client_context(options),
        on_failure=_log_failed_reload,
    )


def load_server_context(
    options: TlsServerOptions,
    *,
    protocol: str | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Reloadable[ssl.SSLContext]:
    """Return the context for a server's options, which is rebuilt when a file changes.

    Clients may select `protocol` (ALPN).
    """

    def build() -> ssl.SSLContext:
        context = build_server_context(options)
        if protocol is not None:
            context.set_alpn_protocols([protocol])
        return context

    return Reloadable(
        _list_paths(options.cert_file, options.key_file, options.client_ca_file),
        build,
        on_failure=_log_failed_reload,
        clock=clock,
    )


def build_client_context(options: TlsOptions) -> ssl.SSLContext:
    """Return a context for a client. It requires TLS 1.3 and, by default, the server's name.

    Raises `UsageError` if a file is invalid. The error names it.
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
        _load_certificate(context, options.cert_file, options.key_file, UsageError)
    return context


def build_server_context(options: TlsServerOptions) -> ssl.SSLContext:
    """Return a context for a server. It requires TLS 1.3 and, optionally, client certificates.

    Raises `ConfigError` if a file is invalid. The error names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # sessions are not resumed, so the server sends nothing first
    _load_certificate(context, options.cert_file, options.key_file, ConfigError)
    if options.client_ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _load_authorities(context, options.client_ca_file, ConfigError)
    return context


_VALIDITY = re.compile(rb"\x30[\x1e-\x22](?:(?:\x17\x0d|\x18\x0f\d\d)\d{12}Z){2}")
"""Matches the times between which a certificate in DER is valid. Those from 2050 on have 4 digits
for the year."""


def explain_expiry(host: str, port: int, timeout: float) -> str | None:
    """Return that the certificate of a server expired, and when; None if it did not.

    A client that does not trust a certificate learns one reason only, which may be another one.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the certificate is read, and nothing is sent
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), timeout) as sock,
            context.wrap_socket(sock) as tls,
        ):
            match = _VALIDITY.search(tls.getpeercert(binary_form=True) or b"")
    except OSError:
        return None
    if match is None:
        return None
    end = datetime.strptime(match[0][-13:-1].decode(), "%y%m%d%H%M%S").replace(tzinfo=UTC)
    if match[0][-15:-13].isdigit() or end > datetime.now(UTC):
        return None
    return (
        f"the certificate of the server expired on {end:%Y-%m-%d %H:%M} UTC; renew it, and check "
        "the clocks"
    )


def _list_paths(*files: _File) -> list[Path]:
    return [Path(file) for file in files if file is not None]


def _log_failed_reload(reason: str) -> None:
    _log.error("cannot reload the certificates; keeping the old ones: %s", reason)


def _load_authorities(
    context: ssl.SSLContext, file: str | os.PathLike[str], kind: type[SplitArrowError]
) -> None:
    _check_readable(file, kind)
    try:
        context.load_verify_locations(cafile=file)
    except OSError:
        raise kind(f"{file} contains no certificates in PEM") from None
    if not context.get_ca_certs():
        raise kind(f"{file} contains no certificate of an authority")


def _load_certificate(
    context: ssl.SSLContext, cert_file: _File, key_file: _File, kind: type[SplitArrowError]
) -> None:
    assert cert_file is not None
    for file in _list_paths(cert_file, key_file):
        _check_readable(file, kind)
    key = cert_file if key_file is None else key_file
    try:
        context.load_cert_chain(cert_file, key_file, password=_refuse_password)
    except _EncryptedKeyError:
        raise kind(f"the key in {key} is encrypted; use a key without a password") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise kind(
                f"the key in {key} does not belong to the certificate in {cert_file}"
            ) from None
        raise kind(f"{cert_file} and {key} contain no certificate and key in PEM") from None


def _check_readable(file: str | os.PathLike[str], kind: type[SplitArrowError]) -> None:
    try:
        with open(file, "rb"):
            pass
    except OSError as error:
        raise kind(f"cannot read {file}: {error.strerror}") from None


def _refuse_password() -> NoReturn:
    raise _EncryptedKeyError
