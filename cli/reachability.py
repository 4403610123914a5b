"""What this client reaches of a server: its locations, its certificates and its clock."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..client.uris import parse_control_uris, split_dataset
from ..errors import ConnectError, SplitArrowError, UsageError
from ..protocol.uri import DataUri
from ..transport.tls_options import TlsOptions, build_client_context
from .connection import open_single_client
from .formatting import format_count, format_duration

if TYPE_CHECKING:
    from ..client.dataset.client import Client
    from ..client.rpc.info import DatasetInfo, Endpoint
    from ..protocol.request import Request

_MAX_SKEW_SECONDS = 3.0
"""The difference of the clocks from which on tokens and tickets may be refused."""
_DO_GET = "flight"


def check_servers(uri: str, token: str | None, timeout: float) -> list[dict[str, Any]]:
    """Return the state of each control plane of a URI, which may also name a dataset."""
    address, name = split_dataset(uri)
    return [_check_server(one.address, name, token, timeout) for one in parse_control_uris(address)]


def _check_server(uri: str, name: str | None, token: str | None, timeout: float) -> dict[str, Any]:
    tls = _check_tls(DataUri.parse(uri), timeout) if uri.startswith("grpc+tls") else None
    started = time.perf_counter()
    try:
        with open_single_client(uri, token, timeout) as client:
            seconds = time.perf_counter() - started
            before = time.time()
            status = client.status()
            clock = _compare_clocks(status.get("time"), before, time.time())
            datasets = client.datasets()
            if name is None and datasets:
                name = datasets[0].name
            reading = {} if name is None else _check_reading(client, name, timeout)
    except UsageError:
        raise
    except SplitArrowError as error:
        return {"uri": uri, "reachable": False, "reason": str(error), "tls": tls}
    return {
        "uri": uri,
        "reachable": True,
        "seconds": round(seconds, 6),
        "version": status.get("version"),
        "draining": bool(status.get("draining")),
        "datasets": len(datasets),
        "clock": clock,
        "tls": tls,
        "advertised": status.get("advertised") or {},
        "dataset": name,
        **reading,
    }


def _compare_clocks(theirs: Any, before: float, after: float) -> dict[str, float] | None:
    """Return how far the server's clock is ahead, and the error; None if it sends no time."""
    if not isinstance(theirs, (int, float)):
        return None
    error = (after - before) / 2
    return {"ahead_seconds": round(theirs - before - error, 3), "error_seconds": round(error, 3)}


def _check_reading(client: Client, name: str, timeout: float) -> dict[str, Any]:
    """Return which locations of a dataset can be read, and which one `auto` chooses."""
    from ..protocol.request import Request

    try:
        is_tensor = bool(client.info(name).tensor_count)
        request = Request(name) if is_tensor else Request(name, limit=1)
        places = _list_places(client.describe(request))
        locations = [_try_location(client, request, index, timeout) for index in range(len(places))]
        format = _choose_format(client, name)
    except SplitArrowError as error:
        return {"locations": [], "auto": {"transport": None, "reason": str(error)}}
    return {"locations": locations, "auto": _choose(client, request, locations), "format": format}


def _list_places(info: DatasetInfo) -> list[tuple[str, Endpoint]]:
    """Return the scheme of each location of the first part, and an endpoint with it alone."""
    from ..client.rpc.info import REUSE_CONNECTION

    if not info.endpoints:
        return []
    endpoint = info.endpoints[0]
    places = [
        (DataUri.parse(uri).scheme, replace(endpoint, locations=(uri,), pair=None))
        for uri in endpoint.locations
    ]
    if endpoint.pair is not None:
        scheme = DataUri.parse(endpoint.pair[0]).scheme
        places.append((scheme, replace(endpoint, locations=())))
    return [(_DO_GET if scheme == REUSE_CONNECTION else scheme, place) for scheme, place in places]


def _try_location(client: Client, request: Request, index: int, timeout: float) -> dict[str, Any]:
    """Read a row of a dataset at one location, with a ticket of its own."""
    from ..client.arguments import ReadPlan, StreamOptions
    from ..client.dataset.endpoints import open_endpoint

    scheme, endpoint = _list_places(client.describe(request))[index]
    uris = [] if scheme == _DO_GET else endpoint.redacted_locations
    report: dict[str, Any] = {"scheme": scheme, "uris": uris}
    if scheme == "tcp+tls":
        report["tls"] = _check_tls(DataUri.parse(uris[0]), timeout)
    plan = ReadPlan(StreamOptions(connect_timeout=timeout, stall_timeout=timeout))
    started = time.perf_counter()
    try:
        reader = open_endpoint(client.channel, endpoint, plan, request.dataset)
        with closing(reader):
            if request.limit is not None:
                next(iter(reader), None)
    except SplitArrowError as error:
        return {
            **report,
            "reachable": False,
            "reason": error.message,
            "advice": _advise(scheme, error),
        }
    return {**report, "reachable": True, "seconds": round(time.perf_counter() - started, 6)}


def _advise(scheme: str, error: SplitArrowError) -> str | None:
    """Return what to do about a location that cannot be read."""
    if scheme == "shm":
        return "shared memory needs a reader on the server's host, and its permission"
    if "is not trusted" in error.message:
        return "name its authority with --tls-ca, and its name with --tls-server-name"
    if isinstance(error, ConnectError):
        return "open the port, or let the server --advertise the address that readers reach"
    return None


def _choose(client: Client, request: Request, locations: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the transport that ``auto`` chooses, and why."""
    try:
        with client.read(request.dataset, limit=request.limit, resume_attempts=0) as stream:
            chosen = stream.transport
    except SplitArrowError as error:
        return {"transport": None, "reason": error.message}
    earlier: list[dict[str, Any]] = []
    for location in locations:
        if location["scheme"] == chosen:
            break
        earlier.append(location)
    if any(location["reachable"] for location in earlier):
        return {"transport": chosen, "reason": "the server sends small data with its plan"}
    reason = "the first location that can be read"
    if earlier:
        reason += f"; not {', '.join(location['scheme'] for location in earlier)}, as shown above"
    return {"transport": chosen, "reason": reason}


def _choose_format(client: Client, name: str) -> dict[str, Any] | None:
    """Return what ``format="auto"`` chooses for a dataset, and why; None if it cannot be read."""
    try:
        choice = client.choose_format(name)
    except SplitArrowError:
        return None
    return {
        "dataset": name,
        "choice": choice.format,
        "reason": choice.reason,
        "link_rate": None if choice.link_rate is None else round(choice.link_rate),
    }


def _check_tls(uri: DataUri, timeout: float) -> dict[str, Any]:
    """Return the TLS version and the certificate of an address, and whether it is trusted."""
    options = TlsOptions.from_environment()
    context = build_client_context(options)
    if uri.scheme.startswith("grpc"):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
    reason = None
    try:
        try:
            version, certificate = _shake_hands(uri, context, options, timeout)
        except ssl.SSLCertVerificationError as error:
            reason = error.verify_message.rstrip(".")
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE  # only the certificate is read
            version, certificate = _shake_hands(uri, context, options, timeout)
    except OSError as error:
        return {"verified": False, "reason": str(error)}
    return {
        "verified": reason is None,
        "reason": reason,
        "version": version,
        **_describe_certificate(certificate),
    }


def _shake_hands(
    uri: DataUri, context: ssl.SSLContext, options: TlsOptions, timeout: float
) -> tuple[str | None, bytes]:
    """Return the TLS version, and the certificate in DER."""
    name = options.server_name or uri.parameter("server_name") or uri.host
    with (
        socket.create_connection((uri.host, uri.port or 0), timeout) as sock,
        context.wrap_socket(sock, server_hostname=name) as tls,
    ):
        return tls.version(), tls.getpeercert(binary_form=True) or b""


def _describe_certificate(der: bytes) -> dict[str, str]:
    try:
        from cryptography.x509 import load_der_x509_certificate
    except ImportError:  # an extra has it
        return {}
    certificate = load_der_x509_certificate(der)
    return {
        "subject": certificate.subject.rfc4514_string(),
        "issuer": certificate.issuer.rfc4514_string(),
        "expires": certificate.not_valid_after_utc.isoformat(),
    }


class Line(NamedTuple):
    """A line of the report."""

    rating: str
    """``good``, ``note`` or ``bad``."""
    name: str
    text: str


def is_usable(server: dict[str, Any]) -> bool:
    """Return whether a server responds, and its dataset can be read."""
    return server["reachable"] and server.get("auto", {"transport": ""})["transport"] is not None


def describe_server(server: dict[str, Any], client_version: str | None) -> Iterator[Line]:
    """Yield the lines about a server."""
    if not server["reachable"]:
        yield Line("bad", server["uri"], server["reason"])
        if server["tls"]:
            yield _tls_line("  TLS", server["tls"])
        return
    draining = server["draining"]
    state = "draining" if draining else "serving"
    text = (
        f"splitarrow {server['version']}, {state} {format_count(server['datasets'], 'dataset')}, "
        f"responded in {format_duration(server['seconds'])}"
    )
    if client_version not in (None, server["version"]):
        text += f"; this client is {client_version}"
    yield Line("note" if draining else "good", server["uri"], text)
    if server["clock"]:
        yield _clock_line(**server["clock"])
    if server["tls"]:
        yield _tls_line("  TLS", server["tls"])
    for service, address in server["advertised"].items():
        yield Line("good", f"  {service}", f"advertised as {address}")
    for location in server.get("locations", ()):
        yield from _location_lines(location)
    if auto := server.get("auto"):
        chosen = auto["transport"]
        text = f"{chosen} for {server['dataset']!r}: {auto['reason']}" if chosen else auto["reason"]
        yield Line("good" if chosen else "bad", "  transport auto", text)
    if choice := server.get("format"):
        text = f"{choice['choice']} for {choice['dataset']!r}: {choice['reason']}"
        yield Line("good", "  format auto", text)


def _clock_line(ahead_seconds: float, error_seconds: float) -> Line:
    off = abs(ahead_seconds)
    if off - error_seconds <= _MAX_SKEW_SECONDS:
        return Line("good", "  clock", f"within {format_duration(off + error_seconds)} of ours")
    side = "ahead of" if ahead_seconds > 0 else "behind"
    advice = "tokens and tickets may be refused; synchronize the clocks"
    return Line("note", "  clock", f"{format_duration(off)} {side} ours: {advice}")


def _tls_line(name: str, tls: dict[str, Any]) -> Line:
    facts = [tls[key] for key in ("version", "subject") if tls.get(key)]
    if tls.get("issuer"):
        facts.append(f"issued by {tls['issuer']}, until {tls['expires'][:10]}")
    facts.append("verified" if tls["verified"] else f"not verified: {tls['reason']}")
    return Line("good" if tls["verified"] else "note", name, "; ".join(facts))


def _location_lines(location: dict[str, Any]) -> Iterator[Line]:
    places = [uri.partition("?")[0] for uri in location["uris"]]
    place = " and ".join(places) or "DoGet on the control plane"
    if location["reachable"]:
        rating, result = "good", f"read in {format_duration(location['seconds'])}"
    else:
        rating, result = "note", "; ".join(filter(None, (location["reason"], location["advice"])))
    yield Line(rating, f"  {location['scheme']}", f"{place}: {result}")
    if location.get("tls"):
        yield _tls_line("", location["tls"])
