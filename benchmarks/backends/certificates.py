"""The certificates of the backends with TLS: one authority and one server, for one run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

CA_MARK = "#ca="
"""What an address has between the URI and the path of the authority's certificate."""


class Certificates(NamedTuple):
    """The paths of PEM files."""

    authority: Path
    """The certificate of the authority, which clients trust."""
    chain: Path
    """The certificate of the server, for 127.0.0.1 and localhost."""
    key: Path
    """The private key of the server."""


def missing_package() -> str | None:
    """Return why no certificates can be made, or None if they can."""
    try:
        import trustme  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        return "it needs trustme: install splitarrow[bench]"
    return None


def make_certificates(folder: Path, name: str) -> Certificates:
    """Write certificates for a server on this host to a folder."""
    import trustme

    paths = Certificates(*(folder / f"{name}-{part}.pem" for part in ("ca", "cert", "key")))
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(paths.authority))
    paths.chain.write_bytes(b"".join(blob.bytes() for blob in server.cert_chain_pems))
    server.private_key_pem.write_to_path(str(paths.key))
    return paths
