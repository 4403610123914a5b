"""An issuer that speaks OAuth 2.0, written from RFC 6749, RFC 8414 and RFC 8628."""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote_plus

from joserfc import jwk, jwt

CLIENT, SERVICE, SECRET = "cli", "batch-job", "secret of the batch job: %&="
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


class _Refused(Exception):
    def __init__(self, error: str, status: int = 400) -> None:
        super().__init__(error)
        self.status = status


@dataclass
class _Device:
    client: str
    audience: str
    scope: str
    expires: float
    interval: float
    polled: float = 0.0
    state: str = "pending"


@dataclass
class OAuthServer:
    """The issuer. A test may change its fields while it runs."""

    token_seconds: float = 60.0
    """The lifetime of access tokens."""
    interval: float | None = 0.0
    """The interval of polling that it demands; None leaves it out."""
    code_seconds: float = 60.0
    """The lifetime of device codes."""
    refreshes: bool = True
    """Whether it issues refresh tokens."""
    approves: str = "approved"
    """What happens to a new device code: pending, approved, or denied."""
    fails: bool = False
    """Whether every request to the token endpoint gets the status 503."""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the metadata that differ from the right ones."""
    requests: list[tuple[str, dict[str, str]]] = field(
        default_factory=list[tuple[str, dict[str, str]]]
    )
    """The paths and fields of all requests."""
    answers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The responses to all requests with fields."""

    def __post_init__(self) -> None:
        self.issuer = ""
        self.lock = threading.Lock()
        self.devices: dict[str, _Device] = {}
        self.refresh_tokens: dict[str, tuple[str, str]] = {}
        self._key = jwk.ECKey.generate_key("P-256", {"kid": "oauth"})

    def describe(self) -> dict[str, Any]:
        """Return the metadata of RFC 8414."""
        return {
            "issuer": self.issuer,
            "token_endpoint": f"{self.issuer}/token",
            "device_authorization_endpoint": f"{self.issuer}/device",
            "jwks_uri": f"{self.issuer}/jwks",
            "response_types_supported": [],
            **self.metadata,
        }

    def answer(self, path: str, body: str, headers: Any) -> tuple[int, dict[str, Any]]:
        """Return the status and the object of a response."""
        if path == "/.well-known/openid-configuration":
            return 200, self.describe()
        if path == "/jwks":
            return 200, {"keys": [self._key.as_dict(private=False)]}
        if headers.get("content-type") != "application/x-www-form-urlencoded":
            return 400, {"error": "invalid_request"}
        pairs = parse_qsl(body, keep_blank_values=True, strict_parsing=True)
        fields = dict(pairs)
        with self.lock:
            self.requests.append((path, fields))
            if self.fails:
                return 503, {}
            try:
                if len(fields) < len(pairs):
                    raise _Refused("invalid_request")  # RFC 6749, 3.2: none more than once
                client = self._authenticate(fields, headers.get("authorization", ""))
                found = self._start(fields) if path == "/device" else self._grant(client, fields)
            except _Refused as error:
                found = {"error": str(error), "error_description": f"because {error}"}
                self.answers.append(found)
                return error.status, found
            self.answers.append(found)
            return 200, found

    def _authenticate(self, fields: dict[str, str], header: str) -> str:
        scheme, _, credentials = header.partition(" ")
        if scheme == "Basic":
            name, _, secret = base64.b64decode(credentials).decode().partition(":")
            if (unquote_plus(name), unquote_plus(secret)) == (SERVICE, SECRET):
                return SERVICE
        elif not header and fields.get("client_id") == CLIENT:
            return CLIENT
        raise _Refused("invalid_client", 401)

    def _start(self, fields: dict[str, str]) -> dict[str, Any]:
        code, user_code = secrets.token_urlsafe(), f"WDJB-{len(self.devices):04}"
        self.devices[code] = _Device(
            fields["client_id"],
            fields.get("audience", ""),
            fields.get("scope", ""),
            time.monotonic() + self.code_seconds,
            5.0 if self.interval is None else self.interval,
            state=self.approves,
        )
        uri = f"{self.issuer}/approve"
        return {
            "device_code": code,
            "user_code": user_code,
            "verification_uri": uri,
            "verification_uri_complete": f"{uri}?user_code={user_code}",
            "expires_in": self.code_seconds,
            **({} if self.interval is None else {"interval": self.interval}),
        }

    def _grant(self, client: str, fields: dict[str, str]) -> dict[str, Any]:
        grant = fields.get("grant_type")
        if grant == DEVICE_GRANT:
            return self._grant_device(client, fields)
        if grant == "client_credentials":
            if client != SERVICE:
                raise _Refused("unauthorized_client")
            return self._issue(client, fields.get("audience", ""), refreshes=False)
        if grant == "refresh_token":
            # A refresh token is good once: RFC 6749, 10.4.
            owner, audience = self.refresh_tokens.pop(fields["refresh_token"], ("", ""))
            if owner != client:
                raise _Refused("invalid_grant")
            return self._issue(client, audience, refreshes=True)
        raise _Refused("unsupported_grant_type")

    def _grant_device(self, client: str, fields: dict[str, str]) -> dict[str, Any]:
        device = self.devices.get(fields["device_code"])
        if device is None or device.client != client:
            raise _Refused("invalid_grant")
        now = time.monotonic()
        if now > device.expires:
            raise _Refused("expired_token")
        if device.state == "denied":
            raise _Refused("access_denied")
        waited, device.polled = now - device.polled, now
        if waited < device.interval:
            device.interval += 5.0
            raise _Refused("slow_down")
        if device.state == "pending":
            raise _Refused("authorization_pending")
        del self.devices[fields["device_code"]]
        return self._issue(client, device.audience, refreshes=self.refreshes)

    def _issue(self, client: str, audience: str, *, refreshes: bool) -> dict[str, Any]:
        claims = {
            "iss": self.issuer,
            "aud": audience,
            "sub": client,
            "exp": time.time() + self.token_seconds,
            "datasets": ["*"],
            "jti": secrets.token_hex(8),
        }
        header = {"alg": "ES256", "kid": "oauth"}
        found: dict[str, Any] = {
            "access_token": jwt.encode(header, claims, self._key, algorithms=["ES256"]),
            "token_type": "Bearer",
            "expires_in": self.token_seconds,
        }
        if refreshes:
            found["refresh_token"] = secrets.token_urlsafe()
            self.refresh_tokens[found["refresh_token"]] = client, audience
        return found

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the settings of a server that accepts its tokens."""
        return {
            "jwks": f"{self.issuer}/jwks",
            "jwt_issuer": self.issuer,
            "jwt_audience": "splitarrow",
            "oauth_client_id": CLIENT,
            "oauth_scope": "openid offline_access",
            **more,
        }

    def secrets(self) -> list[str]:
        """Return everything that no output may contain."""
        names = ("access_token", "refresh_token", "device_code")
        return [
            SECRET,
            *(str(each[name]) for each in self.answers for name in names if name in each),
        ]


@contextmanager
def oauth_server(**fields: Any) -> Generator[OAuthServer]:
    """Run an issuer while the context lasts."""
    issuer = OAuthServer(**fields)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers["content-length"])).decode())

        def _answer(self, body: str) -> None:
            status, found = issuer.answer(self.path, body, self.headers)
            text = json.dumps(found).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", found["location"])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer.issuer = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()
