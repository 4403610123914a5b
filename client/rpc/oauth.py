"""OAuth 2.0: how a client gets tokens from the issuer that a server names.

The grants are those of devices (RFC 8628), client credentials and refresh tokens (RFC 6749). The
issuer's metadata (RFC 8414) is fetched from the issuer itself, and has to name it.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

from ...errors import (
    ConnectError,
    DeniedError,
    MissingExtraError,
    ProtocolError,
    SplitArrowError,
    UsageError,
    install_hint,
    remote_error,
)
from ..tokens import check_token, read_expiry

_MAX_BYTES = 1 << 20
_TIMEOUT_SECONDS = 15.0
_MAX_TEXT = 200
"""The largest number of characters of an issuer's explanation that an error contains."""
_DEFAULT_INTERVAL = 5.0
_MIN_INTERVAL, _MAX_INTERVAL = 0.1, 60.0
_MAX_CODE_SECONDS = 1800.0
_SLOW_DOWN_SECONDS = 5.0
_METADATA_PATHS = ("/.well-known/openid-configuration", "/.well-known/oauth-authorization-server")


@dataclass(frozen=True, slots=True)
class IssuerHint:
    """What a server states about the issuer of its tokens. It is not to be trusted."""

    issuer: str
    """The address of the issuer."""
    client_id: str | None
    """The identifier of a public client."""
    scope: str | None
    """The scopes to request, separated by spaces."""
    audience: str | None
    """The audience that tokens for the server have."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer, as its own metadata describes it."""

    issuer: str
    """The identifier of the issuer, which is its address."""
    token_endpoint: str
    """The URL that issues tokens."""
    device_endpoint: str | None
    """The URL that issues device codes; None if it has none."""


@dataclass(frozen=True, slots=True)
class OAuthClient:
    """A client of an issuer."""

    client_id: str
    """The identifier of the client."""
    secret: str | None = field(default=None, repr=False)
    """The secret of a confidential client; None for a public client."""


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """The code with which a user approves a login in a browser."""

    user_code: str
    """What the user enters."""
    verification_uri: str
    """Where the user enters it."""
    complete_uri: str | None
    """The same address with the code in it; None if the issuer has none."""
    seconds: float
    """How long the code is valid, in seconds."""
    interval: float
    """How long to wait between two requests, in seconds."""
    device_code: str = field(repr=False)
    """What the client sends."""


@dataclass(frozen=True, slots=True)
class IssuedTokens:
    """The tokens of a response."""

    access_token: str = field(repr=False)
    """The bearer token for the server."""
    refresh_token: str | None = field(repr=False)
    """What gets the next access token from the issuer; None if it issued none."""
    expires: float | None
    """When the access token expires, in seconds since 1970; None if that is unknown."""


def parse_hint(payload: bytes, server: str) -> IssuerHint:
    """Parse the response of a server to a handshake that asks for its issuer.

    Raises `UsageError` if the server has no issuer.
    """
    try:
        found: Any = json.loads(payload)
        issuer = found["authorization_servers"][0]
    except (ValueError, RecursionError, TypeError, KeyError, IndexError):
        found, issuer = {}, None
    if not isinstance(issuer, str):
        raise UsageError(f"{server} names no issuer of tokens, so there is nothing to log in to")
    scopes = found.get("scopes_supported")
    texts: list[str] = (
        [each for each in scopes if isinstance(each, str)] if isinstance(scopes, list) else []
    )
    return IssuerHint(
        issuer,
        _text(found, "splitarrow_client_id"),
        " ".join(texts) or None,
        _text(found, "splitarrow_audience"),
    )


def discover(issuer: str, *, local: bool = False) -> Issuer:
    """Return the endpoints of an issuer from its metadata; raise `SplitArrowError` without.

    They need ``https``. Only with `local` may they be on this host, over ``http`` as well.
    """
    base = check_url(issuer, "the issuer", local=local)
    parts = urlsplit(base)
    if parts.query:
        raise UsageError("the issuer is malformed")
    root, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    openid, oauth = _METADATA_PATHS
    problem: SplitArrowError | None = None
    for url in dict.fromkeys((f"{root}{path}{openid}", f"{root}{oauth}{path}")):
        try:
            status, metadata = _request(url, issuer)
        except ProtocolError as error:
            problem = error
            continue
        if status != 200:
            problem = ProtocolError(f"{issuer} has no metadata of an issuer: status {status}")
            continue
        if metadata.get("issuer") != issuer:
            raise ProtocolError(f"the metadata of the issuer {issuer} names another issuer")
        token = _text(metadata, "token_endpoint")
        device = _text(metadata, "device_authorization_endpoint")
        if token is None:
            raise ProtocolError(f"the metadata of the issuer {issuer} has no token_endpoint")
        return Issuer(
            issuer,
            check_url(token, "the token endpoint", local=local),
            None if device is None else check_url(device, "the device endpoint", local=local),
        )
    assert problem is not None
    raise problem


def check_url(url: str, what: str, *, local: bool) -> str:
    """Return a URL that is safe to send secrets to; raise `UsageError` for any other."""
    try:
        parts = urlsplit(url)
        host, has_user = parts.hostname or "", parts.username is not None
    except ValueError:
        raise UsageError(f"{what} is malformed") from None
    is_plain = url.isascii() and url.isprintable() and " " not in url
    if not (host and is_plain) or has_user or parts.fragment:
        raise UsageError(f"{what} is malformed")
    if is_loopback(host):
        if local and parts.scheme in ("http", "https"):
            return url
        if not local:
            raise UsageError(f"{what} {url} is on this host, but the server is not")
    if parts.scheme != "https":
        raise UsageError(f"{what} {url} must use https")
    return url


def is_loopback(host: str) -> bool:
    """Return whether a host name or an address denotes this host, whatever names resolve to."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def start_device_login(
    issuer: Issuer, client: OAuthClient, scope: str | None, audience: str | None, *, local: bool
) -> DeviceCode:
    """Request a device code, which the user approves in a browser."""
    if issuer.device_endpoint is None:
        raise UsageError(
            f"{issuer.issuer} offers no login of devices; use --client-secret-file with the "
            "credentials of a client"
        )
    fields = {"client_id": client.client_id, "scope": scope, "audience": audience}
    status, found = _request(issuer.device_endpoint, issuer.issuer, fields, client)
    if status != 200:
        raise _parse_refusal(issuer.issuer, status, found).error
    code, user_code = _text(found, "device_code"), _text(found, "user_code")
    uri = _text(found, "verification_uri") or _text(found, "verification_url")
    if not (code and user_code and uri and len(user_code) <= _MAX_TEXT and user_code.isprintable()):
        raise ProtocolError(f"{issuer.issuer} sent a malformed device code")
    complete = _text(found, "verification_uri_complete")
    what = "the address to approve the login at"
    return DeviceCode(
        user_code,
        check_url(uri, what, local=local),
        None if complete is None else check_url(complete, what, local=local),
        min(_number(found, "expires_in", _MAX_CODE_SECONDS), _MAX_CODE_SECONDS),
        max(min(_number(found, "interval", _DEFAULT_INTERVAL), _MAX_INTERVAL), _MIN_INTERVAL),
        code,
    )


def wait_for_approval(
    issuer: Issuer,
    client: OAuthClient,
    code: DeviceCode,
    *,
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> IssuedTokens:
    """Ask the issuer for tokens until the user has approved the device code.

    Raises `DeniedError` if the user denies it, or the code expires.
    """
    library = _import_oauthlib()
    body = library.DeviceClient(client.client_id).prepare_request_body(
        code.device_code, include_client_id=client.secret is None
    )
    interval, end = code.interval, clock() + code.seconds
    while True:
        pause(interval)
        try:
            found = _ask_for_tokens(library, issuer, client, body)
        except ConnectError:
            interval = min(2 * interval, _MAX_INTERVAL)
        else:
            if isinstance(found, IssuedTokens):
                return found
            if found.code == "slow_down":
                interval += _SLOW_DOWN_SECONDS
            elif found.code != "authorization_pending":
                raise found.error
        if clock() + interval > end:
            raise _denied("the code has expired before it was approved; log in again")


def request_client_tokens(
    issuer: Issuer, client: OAuthClient, scope: str | None, audience: str | None
) -> IssuedTokens:
    """Request tokens with the secret of a client."""
    library = _import_oauthlib()
    body = library.BackendApplicationClient(client.client_id).prepare_request_body(
        include_client_id=False, scope=scope, audience=audience
    )
    return _request_tokens(library, issuer, client, body)


def refresh_tokens(issuer: Issuer, client: OAuthClient, refresh_token: str) -> IssuedTokens:
    """Request tokens with a refresh token, which the issuer may replace.

    Raises `DeniedError` if the issuer does not accept it any more.
    """
    library = _import_oauthlib()
    body = library.Client(client.client_id).prepare_refresh_body(
        refresh_token=refresh_token,
        client_id=client.client_id,
        include_client_id=client.secret is None,
    )
    return _request_tokens(library, issuer, client, body)


def _import_oauthlib() -> Any:
    try:
        return import_module("oauthlib.oauth2")
    except ModuleNotFoundError:
        raise MissingExtraError(
            f"logins need the package 'oauthlib': {install_hint('login')}"
        ) from None


def _request_tokens(library: Any, issuer: Issuer, client: OAuthClient, body: str) -> IssuedTokens:
    found = _ask_for_tokens(library, issuer, client, body)
    if isinstance(found, _Refusal):
        raise found.error
    return found


def _ask_for_tokens(
    library: Any, issuer: Issuer, client: OAuthClient, body: str
) -> IssuedTokens | _Refusal:
    """Send a request to the token endpoint."""
    now = time.time()
    status, found = _request(issuer.token_endpoint, issuer.issuer, body, client)
    if status != 200 or "error" in found:
        return _parse_refusal(issuer.issuer, status, found)
    try:
        # The scopes may differ from those that were requested.
        tokens = library.Client(client.client_id).parse_request_body_response(json.dumps(found))
        kind, access = str(tokens.get("token_type", "bearer")), check_token(tokens["access_token"])
        refresh = tokens.get("refresh_token")
        refresh = None if refresh is None else check_token(refresh)
    except Exception:  # the library raises many types, whose contexts have the tokens
        kind = access = ""
        refresh = None
    if kind.lower() != "bearer" or not access:
        raise ProtocolError(f"{issuer.issuer} sent no bearer token")
    seconds = _number(found, "expires_in", 0.0)
    return IssuedTokens(access, refresh, now + seconds if seconds else read_expiry(access))


def _request(
    url: str,
    issuer: str,
    fields: Mapping[str, str | None] | str | None = None,
    client: OAuthClient | None = None,
) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON object of a response. The fields make it a POST.

    It follows no redirect: that would send secrets to another address.
    """
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class NoRedirects(HTTPRedirectHandler):
        def redirect_request(
            self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
        ) -> None:
            return None

    data: bytes | None = None
    headers = {"Accept": "application/json"}
    if fields is not None:
        if not isinstance(fields, str):
            fields = urlencode({name: value for name, value in fields.items() if value})
        data = fields.encode()
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    if client is not None and client.secret is not None:
        pair = f"{quote_plus(client.client_id)}:{quote_plus(client.secret)}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    try:
        opener = build_opener(NoRedirects)
        with opener.open(Request(url, data, headers), timeout=_TIMEOUT_SECONDS) as response:
            status, text = response.status, response.read(_MAX_BYTES)
    except HTTPError as error:
        with error:
            status, text = error.code, error.read(_MAX_BYTES)
    except OSError as error:
        reason = str(getattr(error, "reason", None) or error)
        raise ConnectError(f"cannot reach the issuer {issuer}: {reason}") from None
    except (HTTPException, ValueError) as error:
        raise ProtocolError(
            f"the issuer {issuer} answers no HTTP: {type(error).__name__}"
        ) from None
    if status >= 500:
        raise ConnectError(f"the issuer {issuer} has failed: status {status}")
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        if status == 200:
            raise ProtocolError(f"the issuer {issuer} sent no JSON object")
        found = {}
    return status, found


class _Refusal(NamedTuple):
    code: str
    """The code of the error in RFC 6749 and RFC 8628."""
    error: DeniedError


def _parse_refusal(issuer: str, status: int, found: Mapping[str, Any]) -> _Refusal:
    code = _text(found, "error") or f"status {status}"
    messages = {
        "access_denied": "the login was denied",
        "expired_token": "the code has expired before it was approved; log in again",
    }
    explanation = messages.get(code) or _text(found, "error_description") or code
    shown = "".join(each for each in explanation if each.isprintable())[:_MAX_TEXT]
    return _Refusal(code, _denied(f"the issuer {issuer} refuses: {shown}"))


def _denied(message: str) -> DeniedError:
    error = remote_error("UNAUTHENTICATED", message)
    assert isinstance(error, DeniedError)
    return error


def _text(found: Mapping[str, Any], name: str) -> str | None:
    value = found.get(name)
    return value if isinstance(value, str) and value else None


def _number(found: Mapping[str, Any], name: str, default: float) -> float:
    """Return a number, which some issuers send as text; the default if it has no valid one."""
    try:
        value = float(found[name])
    except (KeyError, TypeError, ValueError, OverflowError):
        return default
    return value if 0 <= value < 1e12 else default
