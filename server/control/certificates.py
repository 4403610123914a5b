"""The certificates of the control plane. Their files are read again after a change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import grpc

from ...errors import ConfigError
from ...reloadable import Reloadable
from ...transport.tls_options import TlsServerOptions, build_server_context
from ..logs import get_logger


class CertificateProvider:
    """Provides gRPC with the server's certificate, its key and the authorities of clients.

    Parameters
    ----------
    options : TlsServerOptions
        The files.

    Raises
    ------
    ConfigError
        If a file cannot be used. The error names it.

    Notes
    -----
    gRPC uses TLS 1.3 if the client supports it. It has no setting that refuses TLS 1.2.
    """

    def __init__(self, options: TlsServerOptions) -> None:
        files = (options.cert_file, options.key_file, options.client_ca_file)
        self._options = options
        self._log = get_logger("control")
        self._files = Reloadable(
            [Path(file) for file in files if file is not None],
            self._load,
            on_failure=self._log_failed_reload,
        )
        self._in_use = self._files.current()

    def credentials(self) -> Any:
        """Return credentials for a port. At each handshake, gRPC asks for new certificates."""
        return grpc.dynamic_ssl_server_credentials(
            self._in_use,
            self._reload,
            require_client_authentication=self._options.client_ca_file is not None,
        )

    def _reload(self) -> Any:
        """Return new certificates, or None to keep the current ones. Runs on gRPC's threads."""
        current = self._files.current()
        if current is self._in_use:
            return None
        self._in_use = current
        self._log.info("certificates reloaded")
        return current

    def _load(self) -> Any:
        options = self._options
        build_server_context(options)  # raises errors that name the problem; gRPC's do not
        cert_file, ca_file = options.cert_file, options.client_ca_file
        assert cert_file is not None
        cert = _read_bytes(cert_file)
        key = cert if options.key_file is None else _read_bytes(options.key_file)
        roots = None if ca_file is None else _read_bytes(ca_file)
        return grpc.ssl_server_certificate_configuration([(key, cert)], roots)

    def _log_failed_reload(self, reason: str) -> None:
        self._log.error("cannot reload the certificates; keeping the old ones", reason=reason)


def _read_bytes(file: str | os.PathLike[str]) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
