"""``splitarrow cert``: check certificates, of files and of servers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from ..errors import UsageError
from .connection import AsJson, ConnectTimeout
from .formatting import escape_text
from .options import Subcommands, option
from .tables import make_console, make_properties
from .terminal import standard_output
from .tls_options import with_tls_options

if TYPE_CHECKING:
    from .certificates import CertificateReport

_CA_VARIABLE = "SPLITARROW_TLS_CA"


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
    from .server_certificates import is_server

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
    from .certificates import check_certificates, check_key, contains_key, read_certificates

    certificates = read_certificates(path)
    ca = os.environ.get(_CA_VARIABLE)
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
    from .certificates import check_certificates
    from .server_certificates import fetch_certificates

    certificates, distrust = fetch_certificates(uri, timeout)
    report = check_certificates(uri, certificates, days=days, names=names)
    if distrust:
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
    left = f"{report.days} days left" if report.days >= 0 else "expired"
    chain = "1 certificate" if report.chain == 1 else f"{report.chain} certificates"
    for label, value in (
        ("subject", report.subject),
        ("issuer", report.issuer),
        ("names", ", ".join(report.names)),
        ("valid", f"{report.begins:%Y-%m-%d} to {report.ends:%Y-%m-%d}, {left}"),
        ("key", report.key),
        ("chain", chain),
    ):
        table.add_row(label, Text(escape_text(value)))
    for problem in report.problems:
        table.add_row(Text("problem", "red"), Text(escape_text(problem)))
    console.print(table)


cert = Subcommands("Check the certificates of files and servers.", {"check": check})
