"""The access control of a server: it authenticates callers, and issues and redeems tickets."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn

from anyio import to_thread

from ...errors import ConfigError, DeniedError
from ...protocol.request import Request
from ...protocol.uri import DataUri, Streams
from ..addresses import check_exposure
from ..config import Settings
from .jwt import JwtVerifier, open_key_source
from .principal import ANYONE, Principal, unauthenticated
from .tickets import TicketClaims, TicketKeys, TicketSigner, is_signed
from .token_file import TOKEN, TokenFile

HEADER = "authorization"
MAX_TOKEN_CHARACTERS = 16 << 10
"""The longest token, in characters."""

Headers = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]
"""The headers of a call. Names may be in any case."""
Identify = Callable[[str], Principal | None]
"""Returns the principal of a token that another server knows; None if it does not know it."""


class Authenticator:
    """Finds the principal of a token.

    The sources are a token file, the signature of the token's issuer, and another server.
    """

    def __init__(
        self,
        tokens: TokenFile | None = None,
        jwt_verifier: JwtVerifier | None = None,
        identify: Identify | None = None,
    ) -> None:
        if tokens is None and jwt_verifier is None and identify is None:
            raise ConfigError("an authenticator needs a token file or keys for JSON Web Tokens")
        self._tokens = tokens
        self._jwt_verifier = jwt_verifier
        self._identify = identify

    def authenticate(self, headers: Headers) -> Principal:
        """Return the principal that sent a call.

        The header is ``Authorization: Bearer TOKEN``. ``Basic`` works too, with the token as the
        password, for clients that support nothing else.

        Fetching an issuer's keys can take seconds: call this on a worker thread.

        Raises `DeniedError` with the code UNAUTHENTICATED if the token is missing or invalid. The
        error never quotes the token.
        """
        token, name = _read_token(headers)
        return self._find_principal(token, name)

    def exchange_password(self, username: str, password: str) -> str:
        """Return the token for a user name, which may be empty, and a password: the token."""
        self._find_principal(_check_token(password), username)
        return password

    def _find_principal(self, token: str, name: str) -> Principal:
        principal = None if self._tokens is None else self._tokens.find_principal(token)
        if principal is None and self._jwt_verifier is not None and token.count(".") == 2:
            principal = _verify_jwt(self._jwt_verifier, token)
        if principal is None and self._identify is not None:
            principal = self._identify(token)
        if principal is None or (name and name != principal.name):
            raise unauthenticated("this server does not know the token")
        return principal

    def __repr__(self) -> str:
        sources = (
            ("token file", self._tokens),
            ("JSON Web Tokens", self._jwt_verifier),
            ("another server", self._identify),
        )
        names = " and ".join(name for name, source in sources if source is not None)
        return f"<Authenticator {names}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an authenticator cannot be pickled: build one from the settings in each process"
        )


def _verify_jwt(verifier: JwtVerifier, token: str) -> Principal:
    """Verify a token, refreshing the issuer's keys first or after a failure where that is due."""
    keys = verifier.keys
    if keys.refresh_due:
        keys.refresh()
    try:
        return verifier.verify(token)
    except DeniedError:
        if not keys.refresh_due:
            raise
    keys.refresh()  # the issuer may have added the key that the token names
    return verifier.verify(token)


def _read_token(headers: Headers) -> tuple[str, str]:
    """Return the token and the user name of a call. Bearer tokens have an empty user name."""
    pairs: Iterable[tuple[str, str | bytes]]
    pairs = headers.items() if isinstance(headers, Mapping) else headers  # type: ignore[assignment]
    values = [value for key, value in pairs if key.lower() == HEADER]
    if not values:
        raise unauthenticated("no token: send the header 'authorization: Bearer TOKEN'")
    if len(values) > 1:
        raise unauthenticated("the call has more than one authorization header")
    value = values[0]
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    scheme, _, token = text.strip().partition(" ")
    token, name = token.strip(), ""
    if scheme.lower() == "basic":
        name, token = _decode_basic(token)
    elif scheme.lower() != "bearer":
        raise unauthenticated("the authorization header must be 'Bearer TOKEN'")
    return _check_token(token), name


def _check_token(token: str) -> str:
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise unauthenticated(
            f"the token has {len(token)} characters; the limit is {MAX_TOKEN_CHARACTERS}"
        )
    if not TOKEN.fullmatch(token):
        raise unauthenticated("the token must be printable ASCII without spaces")
    return token


def _decode_basic(text: str) -> tuple[str, str]:
    try:
        decoded = base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        raise unauthenticated("the Basic authorization header is malformed") from None
    name, _, token = decoded.partition(":")
    return name, token


SERVER_NAME = "server"
"""The principal of tickets that a server issues for itself."""


class AccessControl:
    """Authenticates callers, and issues and redeems tickets.

    The control plane authenticates every call. It checks the grants of the caller, and issues
    tickets for the data that the caller may read. A data listener redeems such a ticket without
    knowing its reader: the ticket proves that its principal may read its request.

    Without an authenticator, every caller is `ANYONE`. Without a signer, tickets are plain text
    that everybody can write.
    """

    def __init__(
        self,
        authenticator: Authenticator | None = None,
        signer: TicketSigner | None = None,
        identify: Identify | None = None,
    ) -> None:
        if authenticator is not None and signer is None:
            raise ConfigError("a server that requires tokens must sign its tickets")
        self._authenticator = authenticator
        self._identify = identify
        self.signer = signer
        """Signs tickets; None if tickets are unsigned."""

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        signer: TicketSigner | None = None,
        identify: Identify | None = None,
    ) -> AccessControl:
        """Return the access control for the server's settings, by default with a new signer.

        Tokens that the settings do not know are looked up with `identify`. Raises `ConfigError` if
        a file cannot be read, or settings that belong together are incomplete. Raises
        `MissingExtraError` if joserfc is needed and not installed.
        """
        authenticator = _build_authenticator(settings, identify)
        if signer is None:
            signer = _build_signer(settings, requires_token=authenticator is not None)
        return cls(authenticator, signer, identify)

    @property
    def requires_token(self) -> bool:
        """Whether calls of the control plane need a token."""
        return self._authenticator is not None

    @property
    def signs_tickets(self) -> bool:
        """Whether readers need a signed ticket."""
        return self.signer is not None

    async def authenticate(self, headers: Headers) -> Principal:
        """Return the principal that sent a call; see `Authenticator.authenticate`."""
        if self._authenticator is None:
            return ANYONE
        return await to_thread.run_sync(self._authenticator.authenticate, headers)

    async def exchange_password(self, username: str, password: str) -> str:
        """Return the bearer token for a user name and password."""
        if self._authenticator is None:
            raise unauthenticated("this server has no passwords: it requires no token")
        return await to_thread.run_sync(self._authenticator.exchange_password, username, password)

    def issue_ticket(self, request: Request, principal: str = SERVER_NAME) -> bytes:
        """Return a ticket for reading a request, signed if readers need that.

        The caller must have checked that the principal may read the dataset.
        """
        return request.ticket() if self.signer is None else self.signer.sign(request, principal)

    def redeem_ticket(
        self, ticket: bytes, stream: Streams, caller: Principal = ANYONE
    ) -> TicketClaims:
        """Return the contents of a ticket. A signed ticket is then used up for the stream.

        Without tokens, all callers are one. Raises `DeniedError` with the code UNAUTHENTICATED if a
        signed ticket is invalid, expired or used, or if the ticket is signed and the server uses
        unsigned ones. Raises `DeniedError` if a ticket was issued to another principal than the
        caller. Raises `InvalidRequestError` if an unsigned ticket is malformed. Raises
        `ExhaustedError` if the server cannot remember more used tickets.
        """
        if self.signer is not None:
            owner = None if caller is ANYONE else caller.name
            return self.signer.redeem(ticket, stream, owner)
        if is_signed(ticket):  # parsing it would quote it in an error
            raise unauthenticated("this server does not accept signed tickets")
        return TicketClaims(Request.parse(ticket), ANYONE.name)

    def check_exposure(
        self,
        listeners: Iterable[DataUri],
        control: DataUri | None,
        *,
        client_certificates: bool = False,
        insecure: bool = False,
    ) -> None:
        """Raise `ConfigError` if other machines could read without a token; see `addresses`."""
        check_exposure(
            listeners,
            control,
            requires_token=self.requires_token,
            signs_tickets=self.signs_tickets,
            client_certificates=client_certificates,
            insecure=insecure,
        )

    def load(self, settings: Settings) -> Callable[[], None]:
        """Read the tokens and keys that settings name, and return a function that applies them.

        Whether tokens and signed tickets are required does not change.
        """
        authenticator = _build_authenticator(settings, self._identify)
        path = settings.ticket_key_file
        keys = None if path is None else TicketKeys(path=path)

        def apply() -> None:
            if self._authenticator is not None and authenticator is not None:
                self._authenticator = authenticator
            if self.signer is not None and keys is not None:
                self.signer.use_keys(keys)

        return apply

    def close(self) -> None:
        """Forget the used tickets. Idempotent."""
        if self.signer is not None:
            self.signer.close()


def _build_signer(settings: Settings, *, requires_token: bool) -> TicketSigner | None:
    """Return a signer if the server requires tokens, or the settings name ticket keys."""
    path = settings.ticket_key_file
    if path is None and not requires_token:
        return None
    return TicketSigner(TicketKeys(path=path), settings.ticket_seconds)


def _build_authenticator(settings: Settings, identify: Identify | None) -> Authenticator | None:
    """Return an authenticator if the settings name tokens, or another server knows them."""
    tokens = None if settings.token_file is None else TokenFile(settings.token_file)
    verifier: JwtVerifier | None = None
    issuer, audience = settings.jwt_issuer, settings.jwt_audience
    if settings.jwks is not None:
        if issuer is None or audience is None:
            raise ConfigError("jwks: set jwt_issuer and jwt_audience as well")
        keys, leeway = open_key_source(settings.jwks), settings.jwt_leeway_seconds
        verifier = JwtVerifier(keys, issuer, audience, leeway_seconds=leeway)
    elif issuer is not None or audience is not None:
        raise ConfigError("jwt_issuer and jwt_audience: set jwks as well")
    if tokens is None and verifier is None and identify is None:
        return None
    return Authenticator(tokens, verifier, identify)
