"""The expiry of the daemon's certificate."""

from __future__ import annotations

from pathlib import Path

from cryptography.x509 import load_pem_x509_certificate

from ...errors import ConfigError
from ...reloadable import Reloadable


class CertificateExpiry:
    """When a certificate expires. It is read again when its file changes.

    Parameters
    ----------
    path : Path
        The certificate chain, in PEM. The first certificate counts.
    """

    def __init__(self, path: Path) -> None:
        self._file = Reloadable([path], lambda: _read_expiry(path), on_failure=_ignore)

    def seconds(self) -> float:
        """Return the time in seconds since 1970."""
        return self._file.current()


def _read_expiry(path: Path) -> float:
    try:
        return load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the certificate {path}: {error}") from None


def _ignore(reason: str) -> None:
    """Do nothing: the listener that uses the certificate logs the failure."""
    del reason
