"""Checks of certificates: dates, names, keys and chains."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_DAY = timedelta(days=1)
_MIN_RSA_BITS = 2048
_WEAK_HASHES = ("md5", "sha1")


@dataclass
class CertificateReport:
    """A certificate, and what is wrong with it and with the certificates that follow it."""

    target: str
    """The file or the URI."""
    subject: str
    issuer: str
    names: list[str]
    """The host names and addresses that it is for."""
    begins: datetime
    ends: datetime
    days: int
    """The whole days until it expires; negative afterwards."""
    key: str
    """The kind of its key."""
    chain: int
    """The certificates, intermediate ones included."""
    problems: list[str] = field(default_factory=list[str])

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON."""
        dates = {"begins": self.begins.isoformat(), "ends": self.ends.isoformat()}
        return {**vars(self), **dates, "good": not self.problems}


def import_cryptography(module: str) -> Any:
    """Import a module of cryptography.

    Raises `MissingExtraError` if it is not installed.
    """
    try:
        return import_module(f"cryptography.{module}")
    except ModuleNotFoundError:
        raise MissingExtraError(
            "certificates need the package 'cryptography': pip install 'splitarrow[cert]'"
        ) from None


def read_certificates(path: Path) -> list[Certificate]:
    """Return the certificates of a PEM file.

    Raises `ConfigError` if it has none. Raises `OSError` if it cannot be read.
    """
    x509 = import_cryptography("x509")
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except ValueError:
        raise ConfigError(f"{path} contains no valid certificate in PEM") from None


def check_certificates(
    target: str,
    certificates: Sequence[Certificate],
    *,
    days: int,
    names: Sequence[str] = (),
    authorities: Sequence[Certificate] | None = None,
    now: datetime | None = None,
) -> CertificateReport:
    """Return a report of a certificate and the intermediate ones that follow it.

    `days`: how long each must still be valid. `names` is the hosts that the certificate must be
    for. `authorities`: By default, the end of the chain is not checked.
    """
    leaf = certificates[0]
    now = now or datetime.now(UTC)
    own_names = list_names(leaf)
    report = CertificateReport(
        target=target,
        subject=leaf.subject.rfc4514_string() or "(empty)",
        issuer=leaf.issuer.rfc4514_string(),
        names=own_names,
        begins=leaf.not_valid_before_utc,
        ends=leaf.not_valid_after_utc,
        days=(leaf.not_valid_after_utc - now) // _DAY,
        key=_describe_key(leaf.public_key()),
        chain=len(certificates),
    )
    for number, certificate in enumerate(certificates):
        which = "it" if number == 0 else f"certificate {number + 1} of the chain"
        report.problems += (
            f"{which} {problem}" for problem in _check_dates(certificate, now, days)
        )
        report.problems += (f"{which} {problem}" for problem in _check_strength(certificate))
    report.problems += _check_names(leaf, own_names, names)
    report.problems += _check_chain(certificates)
    if authorities is not None:
        report.problems += _check_authorities(certificates[-1], authorities, now, days)
    return report


def check_key(certificate: Certificate, path: Path) -> str | None:
    """Return what is wrong with the private key of a certificate, or None.

    Raises `OSError` if the file cannot be read.
    """
    serialization = import_cryptography("hazmat.primitives.serialization")
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except TypeError:
        return f"the key in {path} is encrypted; use a key without a password"
    except ValueError:
        return f"{path} contains no valid private key in PEM"
    if key.public_key() != certificate.public_key():
        return f"the key in {path} does not belong to it"
    return None


def contains_key(path: Path) -> bool:
    """Return whether a PEM file contains a private key."""
    return b"PRIVATE KEY-----" in path.read_bytes()


def list_names(certificate: Certificate) -> list[str]:
    """Return the host names and addresses that a certificate is for."""
    x509 = import_cryptography("x509")
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    dns: list[str] = found.get_values_for_type(x509.DNSName)
    return [*dns, *map(str, found.get_values_for_type(x509.IPAddress))]


def matches(host: str, names: Sequence[str]) -> bool:
    """Return whether the names of a certificate include a host.

    A wildcard stands for the first part of a name.

    Examples
    --------
    >>> [matches(host, ["*.example.com", "10.0.0.7"]) for host in ("a.example.com", "10.0.0.7")]
    [True, True]
    >>> [matches(host, ["*.example.com"]) for host in ("example.com", "a.b.example.com")]
    [False, False]
    """
    host = host.strip("[]").rstrip(".").lower()
    try:
        return str(ipaddress.ip_address(host)) in names
    except ValueError:
        wildcard = f"*.{host.partition('.')[2]}"
        return any(name.lower() in (host, wildcard) for name in names)


def _check_dates(certificate: Certificate, now: datetime, days: int) -> Iterator[str]:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        yield f"is not valid before {begins:%Y-%m-%d %H:%M} UTC"
    if now > ends:
        yield f"expired on {ends:%Y-%m-%d %H:%M} UTC"
    elif ends - now < days * _DAY:
        left = (ends - now) // _DAY
        yield f"expires in {left} day{'' if left == 1 else 's'}, on {ends:%Y-%m-%d %H:%M} UTC"


def _check_strength(certificate: Certificate) -> Iterator[str]:
    key = certificate.public_key()
    bits = getattr(key, "key_size", None)
    if _describe_key(key).startswith("RSA") and bits is not None and bits < _MIN_RSA_BITS:
        yield f"has an RSA key of {bits} bits; TLS needs {_MIN_RSA_BITS}"
    algorithm = certificate.signature_hash_algorithm
    if (
        algorithm is not None
        and algorithm.name in _WEAK_HASHES
        and not _is_self_signed(certificate)
    ):
        yield f"is signed with {algorithm.name.upper()}, which TLS refuses"


def _check_names(
    certificate: Certificate, names: Sequence[str], wanted: Sequence[str]
) -> Iterator[str]:
    if not names and not _is_authority(certificate):
        yield "it has no subject alternative names; clients ignore the common name"
    for host in wanted:
        if not matches(host, names):
            yield f"it is not for {host!r}"


def _check_chain(certificates: Sequence[Certificate]) -> Iterator[str]:
    for number, (certificate, issuer) in enumerate(pairwise(certificates), 1):
        if not _issued(issuer, certificate):
            yield (
                f"certificate {number + 1} of the chain did not issue certificate {number}; each "
                "must follow the one that it issued"
            )


def _check_authorities(
    last: Certificate, authorities: Sequence[Certificate], now: datetime, days: int
) -> Iterator[str]:
    """Yield what is wrong with the authority that issued the last certificate of a chain."""
    issuers = [each for each in authorities if each == last or _issued(each, last)]
    for issuer in issuers:
        if issuer != last:
            name = issuer.subject.rfc4514_string()
            yield from (f"its authority {name!r} {one}" for one in _check_dates(issuer, now, days))
    if not issuers:
        yield f"no trusted authority is its issuer, {last.issuer.rfc4514_string()!r}"


def _issued(issuer: Certificate, certificate: Certificate) -> bool:
    exceptions = import_cryptography("exceptions")
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, exceptions.InvalidSignature):
        return False
    return True


def _is_self_signed(certificate: Certificate) -> bool:
    return certificate.subject == certificate.issuer


def _is_authority(certificate: Certificate) -> bool:
    x509 = import_cryptography("x509")
    try:
        found = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        return False
    return found.value.ca


def _describe_key(key: Any) -> str:
    """Return the kind of a public key, such as ``RSA 2048``, ``EC secp256r1`` or ``Ed25519``."""
    kind = type(key).__name__.removesuffix("PublicKey").lstrip("_")
    if hasattr(key, "curve"):
        return f"EC {key.curve.name}"
    return f"{kind} {key.key_size}" if hasattr(key, "key_size") else kind
