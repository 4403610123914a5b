"""Logins that are kept: the tokens for each server, and where they are renewed.

A login belongs to one server, by scheme, host and port, and to the issuer that it was made at. Its
tokens are sent to no other server, and its refresh token to no other issuer, whatever a server
names later. Its file is readable by its user alone. A keyring, if there is one, keeps the tokens.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
import tempfile
import threading
import time
from collections.abc import Generator, Hashable
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...errors import (
    ConnectError,
    DeniedError,
    ProtocolError,
    SplitArrowError,
    UsageError,
    remote_error,
)
from ..tokens import TokenSource, renewal_margin
from .oauth import (
    IssuedTokens,
    Issuer,
    OAuthClient,
    refresh_tokens,
    request_client_tokens,
)

FOLDER_VARIABLE = "SPLITARROW_LOGINS"
"""The environment variable for the folder of logins."""
_SERVICE = "splitarrow"
_log = logging.getLogger("splitarrow.login")
_RETRY_SECONDS = 10.0
_SECRETS = ("access_token", "refresh_token", "client_secret")


@dataclass(frozen=True, slots=True)
class Login:
    """A login at a server."""

    server: str
    """The control plane, as scheme, host and port."""
    issuer: str
    """The issuer of the tokens."""
    token_endpoint: str
    """The URL of the issuer that renews them."""
    client_id: str
    """The client that they were issued to."""
    scope: str | None
    """The scopes that were requested."""
    audience: str | None
    """The audience that was requested."""
    access_token: str = field(repr=False)
    """The bearer token for the server."""
    refresh_token: str | None = field(default=None, repr=False)
    """What renews it; None if the issuer has issued none."""
    client_secret: str | None = field(default=None, repr=False)
    """The secret of the client, which renews it as well; None for a public client."""
    issued: float = 0.0
    """When the access token was issued, in seconds since 1970."""
    expires: float | None = None
    """When the access token expires, in seconds since 1970; None if that is unknown."""

    @property
    def is_due(self) -> bool:
        """Whether the access token has expired, or is about to."""
        if self.expires is None:
            return False
        lifetime = self.expires - self.issued
        return time.time() >= self.expires - renewal_margin(max(lifetime, 0.0))

    @property
    def has_expired(self) -> bool:
        """Whether the access token has expired."""
        return self.expires is not None and time.time() >= self.expires

    def renew(self) -> Login:
        """Return the login with new tokens of its issuer.

        Raises `DeniedError` if the login has ended, and `ConnectError` if the issuer cannot be
        reached.
        """
        issuer = Issuer(self.issuer, self.token_endpoint, None)
        client = OAuthClient(self.client_id, self.client_secret)
        if self.refresh_token is not None:
            return self.with_tokens(refresh_tokens(issuer, client, self.refresh_token))
        if self.client_secret is not None:
            return self.with_tokens(
                request_client_tokens(issuer, client, self.scope, self.audience)
            )
        raise remote_error("UNAUTHENTICATED", f"the issuer {self.issuer} issued no refresh token")

    def with_tokens(self, tokens: IssuedTokens) -> Login:
        """Return the login with other tokens. A refresh token stays if there is no other one."""
        return replace(
            self,
            access_token=tokens.access_token,
            refresh_token=tokens.refresh_token or self.refresh_token,
            issued=time.time(),
            expires=tokens.expires,
        )


class LoginStore:
    """The place of the login at one server."""

    def __init__(self, server: str) -> None:
        self.server = server
        """The control plane, as scheme, host and port."""
        self.path = _find_folder() / f"{quote(server, safe='')}.json"
        """The file."""

    @property
    def exists(self) -> bool:
        """Whether there is a login."""
        return os.path.exists(self.path)

    @contextmanager
    def lock(self) -> Generator[None]:
        """Let no other process change the login while the context lasts."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise UsageError(
                f"cannot keep logins in {self.path.parent}: {error.strerror}; set {FOLDER_VARIABLE}"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def load(self) -> Login | None:
        """Return the login; None if there is none.

        Raises `UsageError` if the file is malformed, or other users can read it.
        """
        try:
            with open(self.path, encoding="utf-8") as file:
                status = os.fstat(file.fileno())
                text = file.read()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is malformed"
            raise UsageError(f"cannot read the login in {self.path}: {reason}") from None
        if stat.S_IMODE(status.st_mode) & 0o077 or status.st_uid != os.geteuid():
            raise UsageError(
                f"{self.path} must belong to you, and no other user may read it; remove it, and "
                f"run splitarrow login {self.server}"
            )
        login: Login | None = None
        with suppress(ValueError, TypeError, KeyError):
            values: dict[str, Any] = json.loads(text)
            if values.pop("keyring", False):
                values |= json.loads(_load_from_keyring(self.server) or "{}")
            login = Login(**values)
        if login is None or login.server != self.server:
            # Raised here, outside the handler: the context of an exception would quote the tokens.
            raise UsageError(
                f"the login in {self.path} is incomplete; run splitarrow login {self.server}"
            )
        return login

    def save(self, login: Login) -> None:
        """Replace the login."""
        values = asdict(login)
        secrets = json.dumps({name: values[name] for name in _SECRETS})
        if _save_in_keyring(self.server, secrets):
            values = {"keyring": True} | {
                name: value for name, value in values.items() if name not in _SECRETS
            }
        descriptor, temporary = tempfile.mkstemp(dir=self.path.parent)  # with the mode 0600
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                json.dump(values, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise

    def remove(self) -> bool:
        """Remove the login, and return whether there was one."""
        _remove_from_keyring(self.server)
        try:
            self.path.unlink()
        except FileNotFoundError:
            return False
        return True


def _find_folder() -> Path:
    if found := os.environ.get(FOLDER_VARIABLE):
        return Path(found)
    state = os.environ.get("XDG_STATE_HOME") or ""
    home = Path(state) if os.path.isabs(state) else Path(os.path.expanduser("~/.local/state"))
    return home / "splitarrow" / "logins"


def _find_keyring() -> Any:
    """Return the keyring library, if it is installed and has a safe place; None otherwise."""
    with suppress(Exception):  # backends raise many types
        library = import_module("keyring")
        if library.get_keyring().priority >= 1:
            return library
    return None


def _load_from_keyring(server: str) -> str | None:
    library = _find_keyring()
    with suppress(Exception):
        return None if library is None else library.get_password(_SERVICE, server)
    return None


def _save_in_keyring(server: str, secrets: str) -> bool:
    library = _find_keyring()
    if library is None:
        return False
    with suppress(Exception):
        library.set_password(_SERVICE, server, secrets)
        return True
    return False


def _remove_from_keyring(server: str) -> None:
    library = _find_keyring()
    if library is not None:
        with suppress(Exception):
            library.delete_password(_SERVICE, server)


class LoginToken(TokenSource):
    """The token of the login at a server, which is renewed at its issuer before it expires."""

    def __init__(self, store: LoginStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._login: Login | None = None
        self._rejected: str | None = None
        self._next_attempt = 0.0
        """The time of the next attempt to renew a token that is still valid."""

    def current(self) -> str:
        """Return the access token; renew it if it expires soon, or a server has refused it.

        Raises `DeniedError` if the login has ended.
        """
        with self._lock:
            if self._login is None or self._is_stale(self._login):
                self._login = self._renew()
            return self._login.access_token

    def _is_stale(self, login: Login) -> bool:
        if login.access_token == self._rejected or login.has_expired:
            return True
        return login.is_due and time.monotonic() >= self._next_attempt

    def _renew(self) -> Login:
        with self._store.lock():
            login = self._store.load()  # another process may have renewed it
            if login is None:
                raise self._ended("it was removed")
            was_rejected = login.access_token == self._rejected
            if not (login.is_due or was_rejected):
                return login
            try:
                renewed = login.renew()
            except DeniedError as error:
                if was_rejected or login.has_expired:
                    raise self._ended(error.message) from None
                return self._keep(login)
            except (ConnectError, ProtocolError) as error:
                if login.has_expired:
                    raise ConnectError(f"the login has expired: {error.message}") from None
                return self._keep(login)
            try:
                self._store.save(renewed)
            except OSError as error:
                _log.warning("cannot keep the renewed login: %s", error.strerror)
            return renewed

    def _keep(self, login: Login) -> Login:
        """Use an access token that could not be renewed for a while longer."""
        self._rejected = None
        self._next_attempt = time.monotonic() + _RETRY_SECONDS
        return login

    def _ended(self, reason: str) -> SplitArrowError:
        server = self._store.server
        return remote_error(
            "UNAUTHENTICATED",
            f"the login at {server} has ended: {reason}; run splitarrow login {server}",
        )

    def reject(self, token: str) -> None:
        """Renew the access token at the next use, unless that was done since."""
        with self._lock:
            self._rejected = token

    def _key(self) -> Hashable:
        return self._store.path

    def __repr__(self) -> str:
        return f"<LoginToken of {self._store.server}>"


def find_login(server: str) -> LoginToken | None:
    """Return the token of the login at a server; None if there is none."""
    store = LoginStore(server)
    return LoginToken(store) if store.exists else None
