"""JSON Web Tokens: an issuer names a principal and the datasets that it may use.

The public keys of the issuer (JSON Web Key Sets) come from a file or a URL.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from ...errors import ConfigError, DeniedError, MissingExtraError, SplitArrowError, install_hint
from ...transport.credential_files import Reloadable
from ..addresses import is_loopback
from ..logs import get_logger
from .principal import Grants, Principal, is_principal_name, parse_globs, unauthenticated

MAX_BYTES = 1 << 20
"""The largest key set, in bytes."""
_KEY_TYPES = ("RSA", "EC", "OKP")
_FETCH_TIMEOUT_SECONDS = 5.0
_MAX_AGE_SECONDS = 300.0
_RETRY_SECONDS = 10.0


class KeySource(Protocol):
    """A source of public keys."""

    @property
    def refresh_due(self) -> bool:
        """Whether to call `refresh`."""
        return False

    def current(self) -> Any:
        """Return the keys, without blocking."""
        ...

    def report_unknown_key(self) -> None:
        """Record that a token names a key that is missing, so that a refresh is due earlier."""

    def refresh(self) -> None:
        """Load the keys again, which can take seconds. After a failure, keep the old ones."""


def open_key_source(location: str) -> KeySource:
    """Return the key source for a URL or for the path of a file."""
    return UrlKeys(location) if "://" in location else FileKeys(Path(location))


class FileKeys(KeySource):
    """The keys of a file. It is read again after a change."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        def read() -> Any:
            try:
                data = path.read_bytes()
            except OSError as error:
                raise ConfigError(f"cannot read the keys in {path}: {error.strerror}") from None
            return parse_key_set(data, str(path))

        self._file = Reloadable([path], read, on_failure=_log_failed_reload, clock=clock)

    def current(self) -> Any:
        """Return the keys."""
        return self._file.current()


class UrlKeys(KeySource):
    """Keys that are fetched from a URL.

    A refresh is due when the keys are five minutes old, or ten seconds after the last fetch if a
    token named an unknown key.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        fetch: Callable[[str], bytes] | None = None,
    ) -> None:
        check_url(url)
        self._url = url
        self._clock = clock
        self._fetch = fetch_url if fetch is None else fetch
        self._lock = threading.Lock()
        self._key_missing = False
        self._fetched_at = clock()
        self._keys = parse_key_set(self._fetch(url), url)

    @property
    def refresh_due(self) -> bool:
        """Whether the keys are old, or a token named an unknown key."""
        age = self._clock() - self._fetched_at
        return age >= (_RETRY_SECONDS if self._key_missing else _MAX_AGE_SECONDS)

    def current(self) -> Any:
        """Return the keys that were fetched last."""
        return self._keys

    def report_unknown_key(self) -> None:
        """Record that a token names a key that is missing."""
        self._key_missing = True

    def refresh(self) -> None:
        """Fetch the keys if a refresh is still due. A failure is logged and keeps the old keys."""
        with self._lock:
            if not self.refresh_due:
                return
            self._fetched_at = self._clock()
            self._key_missing = False
            try:
                self._keys = parse_key_set(self._fetch(self._url), self._url)
            except SplitArrowError as error:
                self._key_missing = True
                _log_failed_reload(str(error))


def _log_failed_reload(reason: str) -> None:
    get_logger("auth").error(
        "cannot reload the keys of JSON Web Tokens; keeping the old ones", reason=reason
    )


def import_joserfc(module: str) -> Any:
    """Import a module of joserfc, from the extra ``jwt``."""
    try:
        return import_module(f"joserfc.{module}")
    except ModuleNotFoundError:
        raise MissingExtraError(
            f"JSON Web Tokens need the package 'joserfc': {install_hint('jwt')}"
        ) from None


def parse_key_set(data: bytes, source: str) -> Any:
    """Return the public keys of a JSON Web Key Set. Symmetric keys are left out."""
    jwk = import_joserfc("jwk")
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{source}: the JSON Web Key Set has more than {MAX_BYTES} bytes")
    keys: Any = None
    problem = "has no public key for signatures"
    try:
        public = [
            key
            for key in json.loads(data)["keys"]
            if key.get("kty") in _KEY_TYPES and key.get("use", "sig") == "sig"
        ]
        if public:
            keys = jwk.KeySet.import_key_set({"keys": public})
    except Exception:
        problem = "is malformed"
    if keys is None:
        # Raised here, outside the handler: the context of an exception would quote the keys.
        raise ConfigError(f"{source}: the JSON Web Key Set {problem}")
    return keys


def check_url(url: str) -> None:
    """Raise `ConfigError` unless a URL is safe to fetch keys from: ``https``, or on this host."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        parts, host = None, ""
    if parts is None or not host or parts.username is not None:
        raise ConfigError("the URL of the keys is malformed, or has a user name in it")
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)):
        return
    raise ConfigError(f"{parts.scheme}://{host}: the URL of the keys must use https")


def fetch_url(url: str) -> bytes:
    """Return the first bytes of the content of a URL, up to one more than `MAX_BYTES`."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class CheckedRedirects(HTTPRedirectHandler):
        def redirect_request(
            self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
        ) -> Request | None:
            try:
                check_url(newurl)
            except ConfigError:
                fp.close()
                raise
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    try:
        with build_opener(CheckedRedirects).open(url, timeout=_FETCH_TIMEOUT_SECONDS) as response:
            return response.read(MAX_BYTES + 1)
    except HTTPError as error:
        with error:
            reason = f"status {error.code}"
    except OSError as error:
        reason = str(getattr(error, "reason", None) or error)
    except (HTTPException, ValueError) as error:
        reason = type(error).__name__
    raise ConfigError(f"cannot fetch the keys from {url}: {reason}")


ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "Ed25519",
)
"""The accepted signatures. All use public keys, so that no verifier can forge a token."""


class JwtVerifier:
    """Verifies JSON Web Tokens.

    The claim ``sub`` is the principal's name. The claims ``datasets`` and ``write`` are its
    grants, each a list of globs or a string of globs separated by spaces. A missing claim grants
    nothing.

    The audience rejects tokens that the issuer made for other services. The leeway, in seconds,
    allows for clocks that differ: it applies to the expiry and the claims ``nbf`` and ``iat``.
    """

    def __init__(
        self,
        keys: KeySource,
        issuer: str,
        audience: str,
        *,
        leeway_seconds: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not issuer or not audience:
            raise ConfigError("JSON Web Tokens need an issuer and an audience to check")
        jwt = import_joserfc("jwt")
        errors = import_joserfc("errors")
        self.keys = keys
        """The issuer's public keys."""
        self._clock = clock
        self._leeway_seconds = leeway_seconds
        self._decode = jwt.decode
        self._unknown_key: type[Exception] = errors.InvalidKeyIdError
        self._expired: type[Exception] = errors.ExpiredTokenError
        self._claims = jwt.JWTClaimsRegistry(
            now=lambda: int(clock()),
            leeway=leeway_seconds,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": audience},
            exp={"essential": True},
        )

    def verify(self, token: str) -> Principal:
        """Return the principal of a token.

        Raises `DeniedError` with the code UNAUTHENTICATED if it is invalid, and never quotes it.
        """
        claims: dict[str, Any] = {}
        try:
            claims = self._decode(token, self.keys.current(), algorithms=ALGORITHMS).claims
            self._claims.validate(claims)
            # The library counts whole seconds.
            expires = claims["exp"] + self._leeway_seconds
            if self._clock() < expires:
                return replace(_read_principal(claims), expires=expires)
            raise _expired_error(claims["exp"])
        except DeniedError:
            raise
        except self._unknown_key:
            self.keys.report_unknown_key()
            reason = "its key is not one of the issuer's"
        except self._expired:
            raise _expired_error(claims["exp"]) from None
        except Exception as error:  # the parsers raise many types for malformed tokens
            get_logger("auth").debug("JSON Web Token refused", reason=type(error).__name__)
            reason = "its signature or a claim is wrong"
        raise unauthenticated(f"the token is invalid: {reason}")


def _expired_error(expires: float) -> DeniedError:
    """Return the error for a token that has expired, at a time in seconds since 1970."""
    with suppress(ValueError, OverflowError, OSError):
        at = datetime.fromtimestamp(expires, UTC)
        return unauthenticated(f"the token has expired, at {at:%Y-%m-%d %H:%M:%S} UTC")
    return unauthenticated("the token has expired")


def _read_principal(claims: dict[str, Any]) -> Principal:
    name = claims.get("sub", "")
    if not is_principal_name(name):
        raise unauthenticated("the token is invalid: its claim sub must be short printable text")
    grants: list[tuple[str, ...]] = []
    for claim in ("datasets", "write"):
        value = claims.get(claim, [])
        globs = parse_globs(value.split() if isinstance(value, str) else value)
        if globs is None:
            raise unauthenticated(
                f"the token is invalid: its claim {claim} must be a list of names or globs"
            )
        grants.append(globs)
    return Principal(name, Grants(*grants))
