"""Certificates of the control plane, read anew when their files change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from ...errors import ConfigError
from ...transport.certificates import TlsServerOptions, server_context
from ...transport.watched import Watched
from ..logs import get_logger


class Certificates:
    """The server's certificate, its key, and whose client certificates it accepts.

    Parameters
    ----------
    options : TlsServerOptions
        Which files.

    Raises
    ------
    ConfigError
        If a file cannot be used; the error names it.

    Notes
    -----
    gRPC takes TLS 1.3 where the client has it. It has no setting that refuses TLS 1.2.
    """

    def __init__(self, options: TlsServerOptions) -> None:
        files = (options.cert_file, options.key_file, options.client_ca_file)
        self._options = options
        self._log = get_logger("control")
        self._watched = Watched(
            [Path(file) for file in files if file is not None],
            self._read,
            on_failure=self._not_taken_over,
        )
        self._shown = self._watched.current()

    def credentials(self) -> Any:
        """Return what gRPC binds a port with; it asks for new certificates at each handshake."""
        return grpc.dynamic_ssl_server_credentials(
            self._shown,
            self._renewed,
            require_client_authentication=self._options.client_ca_file is not None,
        )

    def _renewed(self) -> Any:
        """Return new certificates, or None to keep those shown. A thread of gRPC calls it."""
        current = self._watched.current()
        if current is self._shown:
            return None
        self._shown = current
        self._log.info("certificates reloaded")
        return current

    def _read(self) -> Any:
        options = self._options
        server_context(options)  # says what is wrong with the files; gRPC would not
        cert_file, ca_file = options.cert_file, options.client_ca_file
        assert cert_file is not None
        cert = _bytes(cert_file)
        key = cert if options.key_file is None else _bytes(options.key_file)
        roots = None if ca_file is None else _bytes(ca_file)
        return grpc.ssl_server_certificate_configuration([(key, cert)], roots)

    def _not_taken_over(self, reason: str) -> None:
        self._log.error("certificates not reloaded; the old ones stay", reason=reason)


def _bytes(file: Any) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
