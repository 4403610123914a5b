"""Why a gRPC channel cannot connect: the cause and a hint, from the text that gRPC reports."""

from __future__ import annotations

import re
from typing import NamedTuple


class _Failure(NamedTuple):
    """A failure to connect."""

    pattern: re.Pattern[str]
    """Matches gRPC's text. The group ``reason``, if there is one, is part of the cause."""
    cause: str
    hint: str


def _failure(pattern: str, cause: str, hint: str) -> _Failure:
    return _Failure(re.compile(pattern, re.IGNORECASE), cause, hint)


# The first one that matches counts.
_FAILURES = (
    _failure(
        r"errors resolving|dns resolution|name resolution|lookup failed|domain name not found",
        "the host name cannot be resolved",
        "check the name",
    ),
    _failure(
        r"connection refused",
        "the connection was refused",
        "check that the server runs, and the port",
    ),
    _failure(
        r"(?P<reason>no route to host|network is unreachable|host is down)",
        "{reason}",
        "check the address and the network",
    ),
    _failure(
        r"hostname verification check failed|peer name .* is not in peer certificate",
        "the certificate of the server is for another name",
        "set server_name or SPLITARROW_TLS_SERVER_NAME",
    ),
    _failure(
        r"certificate_verify_failed: (?P<reason>certificate (has expired|is not yet valid))",
        "the certificate of the server is not trusted: {reason}",
        "renew it, and check the clocks",
    ),
    _failure(
        r"certificate_verify_failed(: (?P<reason>[^:;]+))?",
        "the certificate of the server is not trusted: {reason}",
        "name its authority with ca_file or SPLITARROW_TLS_CA",
    ),
    _failure(
        r"wrong_version_number|http_request",
        "the server does not speak TLS",
        "check the port, or use grpc:// instead of grpc+tls://",
    ),
    _failure(
        r"handshake read failed|tls handshake failed",
        "the TLS handshake failed",
        "check that the port is that of a control plane with TLS",
    ),
    _failure(
        r"timed out|before receiving settings",
        "the server does not respond",
        "check that the port is that of a control plane, and firewalls",
    ),
)
_CLOSED = re.compile(
    "socket closed|connection reset|endpoint closing|end of tcp stream|broken pipe|recvmsg|sendmsg",
    re.IGNORECASE,
)
_ADDRESS = re.compile(r"^(?:[A-Z_]+: )*(?:ipv[46]|unix|dns):\S+: ")


def explain_connect_failure(details: str, *, encrypted: bool) -> str:
    """Return the cause of a failure to connect and a hint, in one line.

    Parameters
    ----------
    details : str
        The text that gRPC reports.
    encrypted : bool
        Whether the client speaks TLS.

    Examples
    --------
    >>> details = "last error: UNKNOWN: ipv4:10.0.0.1:8815: Failed to connect: Connection refused"
    >>> explain_connect_failure(details, encrypted=False)
    'the connection was refused; check that the server runs, and the port'
    """
    # gRPC joins the failures of all addresses that it tried.
    reason = details.rpartition("last error: ")[2] or details
    for failure in _FAILURES:
        if match := failure.pattern.search(reason):
            found = match.groupdict().get("reason") or "it cannot be verified"
            return f"{failure.cause.format(reason=found.strip().lower())}; {failure.hint}"
    if _CLOSED.search(reason):
        if encrypted:
            hint = "it may require a client certificate (cert_file, SPLITARROW_TLS_CERT)"
        else:
            hint = "it may require TLS (grpc+tls://)"
        return f"the server closed the connection; {hint}, or the port is not a control plane's"
    return remove_address(reason)


def remove_address(details: str) -> str:
    """Return gRPC's text in one line, without the address that it begins with."""
    return " ".join(_ADDRESS.sub("", details).split())
