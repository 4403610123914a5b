"""Public keys of an issuer of JSON Web Tokens: from a file, or fetched from where it says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from ...errors import ConfigError, MissingExtraError, SplitArrowError
from ...transport.watched import Watched
from ..logs import get_logger
from .exposure import is_loopback

MOST_BYTES = 1 << 20
"""The largest set of keys, in bytes."""
_KINDS = ("RSA", "EC", "OKP")
_FETCH_SECONDS = 5.0
_FRESH_SECONDS = 300.0
_AGAIN_SECONDS = 10.0


class KeySource(Protocol):
    """Where public keys come from."""

    @property
    def refresh_due(self) -> bool:
        """Whether `refresh` is worth a call."""
        ...

    def current(self) -> Any:
        """Return the keys, without waiting."""
        ...

    def missed(self) -> None:
        """Note that a token named a key that is not among them."""
        ...

    def refresh(self) -> None:
        """Get the keys anew; this may take seconds. A failure leaves the old ones."""
        ...


def joserfc(module: str) -> Any:
    """Return a module of joserfc.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    try:
        return import_module(f"joserfc.{module}")
    except ModuleNotFoundError:
        raise MissingExtraError(
            "JSON Web Tokens need the package 'joserfc': pip install 'splitarrow[jwt]'"
        ) from None


def key_set(data: bytes, where: str) -> Any:
    """Return the public keys that a JSON Web Key Set holds; secret ones are left out.

    Raises
    ------
    ConfigError
        If it is none, or holds no key that can verify a signature.
    """
    jwk = joserfc("jwk")
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{where}: more than {MOST_BYTES} bytes; that is no set of keys")
    try:
        listed = json.loads(data)["keys"]
        chosen = [
            item for item in listed if item.get("kty") in _KINDS and item.get("use", "sig") == "sig"
        ]
        keys = jwk.KeySet.import_key_set({"keys": chosen}) if chosen else None
    except Exception:  # the errors of the parsers quote what they read
        keys = None
        chosen = None
    if keys is None:
        reason = "malformed" if chosen is None else "without a public key for signatures"
        raise ConfigError(f"{where}: a JSON Web Key Set {reason}")
    return keys


class FileKeys:
    """The keys of a file, read again when it changes.

    Raises
    ------
    ConfigError
        If it cannot be read, or holds no key.
    """

    refresh_due = False

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        def read() -> Any:
            try:
                data = path.read_bytes()
            except OSError as error:
                raise ConfigError(f"cannot read the keys in {path}: {error.strerror}") from None
            return key_set(data, str(path))

        self._watched = Watched([path], read, on_failure=_not_taken_over, clock=clock)

    def current(self) -> Any:
        """Return the keys."""
        return self._watched.current()

    def missed(self) -> None:
        """Nothing to note: the file is looked at anyway."""

    def refresh(self) -> None:
        """Nothing to do: the file is looked at anyway."""


class UrlKeys:
    """Keys that are fetched: at the start, when they are five minutes old, and for a new one.

    Parameters
    ----------
    url : str
        Where they are, with ``https``; ``http`` is good for this host only.
    clock : callable
        The time in seconds, from any start.
    fetch : callable, optional
        Fetches them.

    Raises
    ------
    ConfigError
        If the URL is unfit, or the keys cannot be had.
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
        self._fetch = fetched if fetch is None else fetch
        self._lock = threading.Lock()
        self._missed = False
        self._tried = clock()
        self._keys = key_set(self._fetch(url), url)

    @property
    def refresh_due(self) -> bool:
        """Whether the keys are old, or one is missing and was not asked for just now."""
        age = self._clock() - self._tried
        return age >= (_AGAIN_SECONDS if self._missed else _FRESH_SECONDS)

    def current(self) -> Any:
        """Return the keys, as they were last fetched."""
        return self._keys

    def missed(self) -> None:
        """Note that a token named a key that is not among them."""
        self._missed = True

    def refresh(self) -> None:
        """Fetch the keys, if that is due still. A failure is logged and leaves the old ones."""
        with self._lock:
            if not self.refresh_due:
                return
            self._tried = self._clock()
            self._missed = False
            try:
                self._keys = key_set(self._fetch(self._url), self._url)
            except SplitArrowError as error:
                self._missed = True
                _not_taken_over(str(error))


def _not_taken_over(reason: str) -> None:
    get_logger("auth").error("keys for tokens not reloaded; the old ones stay", reason=reason)


def check_url(url: str) -> None:
    """Refuse an address from which anybody on the way could hand out keys.

    Raises
    ------
    ConfigError
        If it is neither https nor on this host.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        parts, host = None, ""
    if parts is None or not host or parts.username is not None:
        raise ConfigError("the URL of the keys is malformed, or has a user name in it")
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)):
        return
    raise ConfigError(f"{parts.scheme}://{host}: keys are fetched by https only")


def fetched(url: str) -> bytes:
    """Return what is at a URL.

    Raises
    ------
    ConfigError
        If it cannot be had within a few seconds.
    """
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class Redirects(HTTPRedirectHandler):
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
        with build_opener(Redirects).open(url, timeout=_FETCH_SECONDS) as response:
            return response.read(MOST_BYTES + 1)
    except HTTPError as error:
        error.close()
        reason = f"status {error.code}"
    except OSError as error:
        reason = str(getattr(error, "reason", None) or error)
    except (HTTPException, ValueError) as error:
        reason = type(error).__name__
    raise ConfigError(f"cannot fetch the keys from {url}: {reason}")


def source_of(location: str, **options: Any) -> KeySource:
    """Return the source that a file's path or a URL stands for."""
    if "://" in location:
        return UrlKeys(location, **options)
    return FileKeys(Path(location), **options)
