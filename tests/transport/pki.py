"""Certificates for tests: good ones, and others that are wrong in one way each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from splitarrow.transport.certificates import TlsOptions, TlsServerOptions


class Pki:
    """An authority that clients and servers trust, one that nobody does, and a folder of files."""

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
        """Write a certificate with its key to NAME.pem, and the two apart."""
        certificate.private_key_and_cert_chain_pem.write_to_path(self.path(name))
        certificate.private_key_pem.write_to_path(self.path(f"{name}-key"))
        certificate.cert_chain_pems[0].write_to_path(self.path(f"{name}-cert"))

    def path(self, name: str) -> Path:
        """Where a file of that name is."""
        return self.folder / f"{name}.pem"

    def trusting(self, ca: str = "ca", **options: object) -> TlsOptions:
        """Return a client's options."""
        return TlsOptions(ca_file=self.path(ca), **options)  # type: ignore[arg-type]

    def showing(self, name: str = "server", client_ca: str | None = None) -> TlsServerOptions:
        """Return a server's options."""
        return TlsServerOptions(
            self.path(name), client_ca_file=None if client_ca is None else self.path(client_ca)
        )
