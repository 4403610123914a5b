"""The rights of a server in one object: what its settings say about tokens and tickets."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from anyio import to_thread

from ...errors import ConfigError
from ...protocol.request import Request
from ...protocol.uri import DataUri, StreamKind
from .exposure import check_exposure
from .guard import Guard, Headers
from .jwks import source_of
from .keys import TicketKeys
from .principal import ANYONE, Principal, unauthenticated
from .tickets import TicketOffice, is_signed
from .tokens import TokenFile
from .webtokens import WebTokens

SERVER_NAME = "server"
"""The principal of tickets that a server makes for itself."""


class RightsSettings(Protocol):
    """What of the server's settings counts here."""

    @property
    def token_file(self) -> Path | None:
        """A file with bearer tokens."""
        ...

    @property
    def jwks(self) -> str | None:
        """A file or URL with an issuer's public keys."""
        ...

    @property
    def jwt_issuer(self) -> str | None:
        """Who issues JSON Web Tokens."""
        ...

    @property
    def jwt_audience(self) -> str | None:
        """Whom they are for."""
        ...

    @property
    def ticket_key_file(self) -> Path | None:
        """A file with keys for tickets."""
        ...

    @property
    def ticket_seconds(self) -> float:
        """How long a ticket is good."""
        ...


class Rights:
    """Who may read what from a server.

    Parameters
    ----------
    guard : Guard, optional
        Who asks the control plane; None: it asks nobody for a token.
    office : TicketOffice, optional
        Makes and checks tickets; None: a ticket is a plain name, as everybody can write it.
    """

    def __init__(self, guard: Guard | None = None, office: TicketOffice | None = None) -> None:
        if guard is not None and office is None:
            raise ConfigError("a server that asks for tokens signs its tickets")
        self.guard = guard
        self.office = office

    @property
    def signed(self) -> bool:
        """Whether readers need signed tickets."""
        return self.office is not None

    async def principal(self, headers: Headers) -> Principal:
        """Return who sent a call to the control plane.

        Raises
        ------
        DeniedError
            If that is not proven, with the code UNAUTHENTICATED.
        """
        if self.guard is None:
            return ANYONE
        return await to_thread.run_sync(self.guard.authenticate, headers)

    def ticket(self, request: Request, principal: str = SERVER_NAME) -> bytes:
        """Return a ticket for a request, signed if readers need that."""
        return request.ticket() if self.office is None else self.office.seal(request, principal)

    def admit(self, ticket: bytes, kind: StreamKind) -> Request:
        """Return what a reader may have for a ticket, which is used up by that.

        Raises
        ------
        DeniedError
            If the ticket is not good, or is signed and need not be, with the code
            UNAUTHENTICATED.
        InvalidRequestError
            If it need not be signed, and cannot be understood.
        """
        if self.office is None:
            if is_signed(ticket):  # as a name it would come back in the error
                raise unauthenticated("this server takes no signed tickets")
            return Request.parse(ticket)
        return self.office.open(ticket, kind.value).request

    def check_exposure(
        self,
        listeners: list[DataUri],
        control: DataUri | None,
        *,
        client_certificates: bool = False,
        insecure: bool = False,
    ) -> None:
        """Refuse what would be open to everybody on the network; see `exposure`.

        Raises
        ------
        ConfigError
            If something is.
        """
        check_exposure(
            listeners,
            control,
            guarded=self.guard is not None,
            signed=self.signed,
            client_certificates=client_certificates,
            insecure=insecure,
        )

    def close(self) -> None:
        """Forget which tickets were used. Idempotent."""
        if self.office is not None:
            self.office.close()


def make_office(settings: RightsSettings) -> TicketOffice | None:
    """Return the office that settings ask for: with tokens, or keys for tickets, there is one.

    In a server of several processes the parent makes it and hands it to the workers.

    Raises
    ------
    ConfigError
        If the keys cannot be read.
    """
    path = settings.ticket_key_file
    if path is None and settings.token_file is None and settings.jwks is None:
        return None
    return TicketOffice(TicketKeys(path=path), settings.ticket_seconds)


def make_guard(settings: RightsSettings) -> Guard | None:
    """Return the guard that settings ask for; None if they name no tokens.

    Raises
    ------
    ConfigError
        If a file cannot be read or understood, or a setting lacks another one.
    MissingExtraError
        If JSON Web Tokens are asked for and joserfc is not installed.
    """
    tokens = None if settings.token_file is None else TokenFile(settings.token_file)
    web_tokens = None
    named = (settings.jwt_issuer, settings.jwt_audience)
    if settings.jwks is not None:
        if None in named:
            raise ConfigError("jwks: it needs jwt_issuer and jwt_audience beside it")
        issuer, audience = (text or "" for text in named)
        web_tokens = WebTokens(source_of(settings.jwks), issuer, audience)
    elif named != (None, None):
        raise ConfigError("jwt_issuer and jwt_audience: they need jwks beside them")
    return None if tokens is None and web_tokens is None else Guard(tokens, web_tokens)


def make_rights(settings: RightsSettings, office: TicketOffice | None = None) -> Rights:
    """Return the rights that settings ask for.

    Parameters
    ----------
    settings : RightsSettings
        The server's settings.
    office : TicketOffice, optional
        The one that the parent of a worker process made.

    Raises
    ------
    ConfigError, MissingExtraError
        As `make_guard` and `make_office` do.
    """
    return Rights(make_guard(settings), make_office(settings) if office is None else office)
