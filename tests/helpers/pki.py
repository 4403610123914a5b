"""Certificates for tests: valid ones, and others with one defect each."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from splitarrow.protocol.uri import DataUri
from splitarrow.transport.base import ConnectOptions, ListenOptions
from splitarrow.transport.tls import TlsChannel, TlsListener, TlsTransport
from splitarrow.transport.tls_options import TlsOptions, TlsServerOptions


class TlsWithDefaults(TlsTransport):
    """TLS with default options for connections and listeners."""

    def __init__(
        self, client: TlsOptions | None = None, server: TlsServerOptions | None = None
    ) -> None:
        self._client = client
        self._server = server

    def connect(self, uri: DataUri, options: ConnectOptions) -> TlsChannel:
        return super().connect(uri, replace(options, tls=options.tls or self._client))

    def listen(self, uri: DataUri, options: ListenOptions) -> TlsListener:
        return super().listen(uri, replace(options, tls=options.tls or self._server))


class Pki:
    """A trusted authority, an untrusted authority and a folder of certificate files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.foreign = trustme.CA()
        self.authority.cert_pem.write_to_path(folder / "ca.pem")
        self.foreign.cert_pem.write_to_path(folder / "foreign-ca.pem")
        yesterday = datetime.now(UTC) - timedelta(days=1)
        self.write("server", self.authority.issue_cert("127.0.0.1", "localhost"))
        self.write("elsewhere", self.authority.issue_cert("elsewhere.example"))
        self.write(
            "expired",
            self.authority.issue_cert(
                "127.0.0.1", not_before=yesterday - timedelta(days=9), not_after=yesterday
            ),
        )
        self.write("client", self.authority.issue_cert("client.example"))
        self.write("stranger", self.foreign.issue_cert("client.example"))

    def write(self, name: str, certificate: trustme.LeafCert) -> None:
        """Write a certificate and its key to NAME.pem, and to one file each."""
        certificate.private_key_and_cert_chain_pem.write_to_path(self.path(name))
        certificate.private_key_pem.write_to_path(self.path(f"{name}-key"))
        certificate.cert_chain_pems[0].write_to_path(self.path(f"{name}-cert"))

    def path(self, name: str) -> Path:
        """Return the path of the file with this name."""
        return self.folder / f"{name}.pem"

    def make_client_options(self, ca: str = "ca", **options: object) -> TlsOptions:
        """Return a client's options."""
        return TlsOptions(ca_file=self.path(ca), **options)  # type: ignore[arg-type]

    def make_server_options(
        self, name: str = "server", client_ca: str | None = None
    ) -> TlsServerOptions:
        """Return a server's options."""
        return TlsServerOptions(
            self.path(name), client_ca_file=None if client_ca is None else self.path(client_ca)
        )
