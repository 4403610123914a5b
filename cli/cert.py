"""``splitarrow cert``: check certificates, of files and of servers.

The checks cover dates, names, keys and chains.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.text import Text

from ..errors import ConfigError, ConnectError, MissingExtraError, UsageError, install_hint
from ..protocol.uri import CONTROL_PORT, TCP_PORT
from .connection import AsJson, ConnectTimeout, with_tls_options
from .formatting import escape_text, format_count
from .options import Subcommands, option
from .terminal import make_console, make_properties, standard_output

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
    """Import a module of cryptography, or raise `MissingExtraError`."""
    try:
        return import_module(f"cryptography.{module}")
    except ModuleNotFoundError:
        raise MissingExtraError(
            f"certificates need the package 'cryptography': {install_hint('cert')}"
        ) from None


def read_certificates(path: Path) -> list[Certificate]:
    """Return the certificates of a PEM file; raise `ConfigError` if it has none."""
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

    Each must be valid for `days` more days, and the first one for all `names`. Without
    `authorities`, the end of the chain is not checked.
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
    """Return what is wrong with the private key of a certificate, or None."""
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
        left = format_count((ends - now) // _DAY, "day")
        yield f"expires in {left}, on {ends:%Y-%m-%d %H:%M} UTC"


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


_PORTS = {"grpc+tls": CONTROL_PORT, "tcp+tls": TCP_PORT, "https": 443}
"""The schemes with certificates, and their default ports."""


def is_server(target: str) -> bool:
    """Return whether a target is a URI, and not a file."""
    return "://" in target


def fetch_certificates(uri: str, timeout: float) -> tuple[list[Certificate], str | None]:
    """Connect to a server and return its certificates, and why a client does not trust them.

    The certificates of the client come from the ``SPLITARROW_TLS_…`` variables. Raises
    `ConnectError` if the server does not respond or does not use TLS.
    """
    from ..transport.tls_options import TlsOptions, build_client_context

    scheme, host, port = _split(uri)
    options = TlsOptions.from_environment()
    name = options.server_name or host
    context = build_client_context(options)
    if scheme != "tcp+tls":
        context.set_alpn_protocols(["h2", "http/1.1"] if scheme == "https" else ["h2"])
    problem = None
    try:
        try:
            _present(context, host, port, name, timeout)
        except ssl.SSLCertVerificationError as error:
            problem = error.verify_message.rstrip(".")
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return _present(context, host, port, name, timeout), problem
    except ssl.SSLError as error:
        reason = f"it does not speak TLS 1.3 ({error.reason or error})"
    except OSError as error:
        reason = error.strerror or str(error)
    raise ConnectError(f"cannot connect to {scheme}://{host}:{port}: {reason}")


def _split(uri: str) -> tuple[str, str, int]:
    parts = urlsplit(uri)
    if parts.scheme not in _PORTS:
        schemes = ", ".join(f"{scheme}://" for scheme in _PORTS)
        raise UsageError(f"{parts.scheme}:// has no certificate; expected one of {schemes}")
    try:
        port = parts.port or _PORTS[parts.scheme]
    except ValueError:
        raise UsageError(f"{uri}: the port is not a number below 65536") from None
    if not parts.hostname:
        raise UsageError(f"{uri} names no host")
    return parts.scheme, parts.hostname, port


def _present(
    context: ssl.SSLContext, host: str, port: int, name: str, timeout: float
) -> list[Certificate]:
    x509 = import_cryptography("x509")
    with (
        socket.create_connection((host, port), timeout) as sock,
        context.wrap_socket(sock, server_hostname=name) as tls,
    ):
        get_chain: Any = getattr(tls, "get_unverified_chain", None)  # from Python 3.13 on
        chain = [tls.getpeercert(binary_form=True)] if get_chain is None else get_chain()
    return [x509.load_der_x509_certificate(each) for each in chain]


@with_tls_options
def check(
    targets: Annotated[
        list[str],
        typer.Argument(
            help="PEM files, or servers: [cyan]grpc+tls://host:port[/cyan], "
            "[cyan]tcp+tls://host:port[/cyan] or [cyan]https://host:port[/cyan].",
            metavar="FILE|URI",
        ),
    ],
    key: Annotated[
        Path | None,
        option(help="The private key of the certificate, unless FILE contains it.", metavar="FILE"),
    ] = None,
    name: Annotated[
        list[str] | None,
        option(
            help="A host name or address that the certificate must be for. Repeat it for more.",
            metavar="HOST",
        ),
    ] = None,
    days: Annotated[
        int,
        option(help="How many days it must still be valid.", metavar="DAYS", min=0),
    ] = 30,
    connect_timeout: ConnectTimeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Check the certificates of files and servers.

    It checks the dates, the names, the strength, the order of the chain and, for a file, whether
    the key belongs to the certificate. With --tls-ca, one of its authorities must have issued the
    last certificate. A server must be trusted for the host of its URI. This needs the extra
    [cyan]cert[/cyan].

    The exit status is 1 if there is a problem, or if a certificate expires within --days.

    [dim]splitarrow cert check server.pem --key server-key.pem --name storage-3[/dim]

    [dim]splitarrow cert check grpc+tls://storage-3:8815 --tls-ca ca.pem --days 14[/dim]
    """
    if key is not None and (len(targets) > 1 or is_server(targets[0])):
        raise UsageError("--key belongs to one file; name that file only")
    reports = [
        _check_server(target, name or [], days, connect_timeout)
        if is_server(target)
        else _check_file(Path(target), key, name or [], days)
        for target in targets
    ]
    with standard_output():
        if as_json:
            print(json.dumps([report.as_json() for report in reports], ensure_ascii=False))
        else:
            for report in reports:
                _print(report)
    if any(report.problems for report in reports):
        raise typer.Exit(1)


def _check_file(path: Path, key: Path | None, names: list[str], days: int) -> CertificateReport:
    certificates = read_certificates(path)
    ca = os.environ.get("SPLITARROW_TLS_CA")
    authorities = read_certificates(Path(ca)) if ca else None
    report = check_certificates(
        str(path), certificates, days=days, names=names, authorities=authorities
    )
    if key is not None or contains_key(path):
        problem = check_key(certificates[0], key or path)
        report.problems += [problem] if problem else []
        report.key += "" if problem else ", matches the private key"
    return report


def _check_server(uri: str, names: list[str], days: int, timeout: float) -> CertificateReport:
    certificates, distrust = fetch_certificates(uri, timeout)
    report = check_certificates(uri, certificates, days=days, names=names)
    if distrust and report.days >= 0:  # the reason may be another one than its end
        report.problems.append(f"clients do not trust it: {distrust}")
    return report


def _print(report: CertificateReport) -> None:
    console = make_console()
    heading = Text(escape_text(report.target), "bold cyan")
    heading.append(
        "  problems" if report.problems else "  good", "red" if report.problems else "green"
    )
    console.print(heading)
    table = make_properties()
    left = f"{format_count(report.days, 'day')} left" if report.days >= 0 else "expired"
    for label, value in (
        ("subject", report.subject),
        ("issuer", report.issuer),
        ("names", ", ".join(report.names)),
        ("valid", f"{report.begins:%Y-%m-%d} to {report.ends:%Y-%m-%d}, {left}"),
        ("key", report.key),
        ("chain", format_count(report.chain, "certificate")),
    ):
        table.add_row(label, Text(escape_text(value)))
    for problem in report.problems:
        table.add_row(Text("problem", "red"), Text(escape_text(problem)))
    console.print(table)


cert = Subcommands("Check the certificates of files and servers.", {"check": check})
