"""``splitarrow login`` and ``logout``: tokens of an issuer, which renew themselves."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..client.uris import parse_control_uris
from ..errors import DeniedError, UsageError
from .connection import AsJson, ConnectTimeout, ControlUri, with_tls_options
from .formatting import escape_text
from .options import option
from .terminal import is_terminal, print_message, standard_output

if TYPE_CHECKING:
    from ..client.rpc.logins import Login
    from ..client.rpc.oauth import DeviceCode, IssuerHint, OAuthClient
    from ..protocol.uri import DataUri

_SECRET_VARIABLE = "SPLITARROW_CLIENT_SECRET"


@with_tls_options
def login(
    uri: ControlUri,
    client_id: Annotated[
        str | None,
        option(
            help="The client at the issuer.", default="the one that the server names", metavar="ID"
        ),
    ] = None,
    client_secret_file: Annotated[
        str | None,
        option(
            help="Log in as the client itself, with the secret in this file; - asks for it.",
            default=f"${_SECRET_VARIABLE}",
            metavar="FILE",
        ),
    ] = None,
    scope: Annotated[
        str | None,
        option(
            help="The scopes to request, with spaces between them.",
            default="those that the server names",
            metavar="TEXT",
        ),
    ] = None,
    connect_timeout: ConnectTimeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Log in at the issuer of a server, and keep the token.

    Open the printed address in a browser, on any machine, and enter the code. Later commands and
    `splitarrow.connect` use the token for this server, and renew it.

    With the secret of a client, no browser is needed. The token is kept in the keyring of the
    desktop, or in a file that only you can read.

    [dim]splitarrow login grpc+tls://node1:8815[/dim]
    """
    from ..client.rpc.logins import LoginStore

    server = _parse_server(uri)
    secret = _read_secret(client_secret_file)
    hint = _ask_server(server, connect_timeout)
    made = _log_in(server, hint, client_id, secret, scope, as_json=as_json)
    store = LoginStore(server.address)
    with store.lock():
        store.save(made)
    ends = None if made.expires is None else datetime.fromtimestamp(made.expires, UTC)
    renews = made.refresh_token is not None or made.client_secret is not None
    if as_json:
        done = {
            "server": made.server,
            "issuer": made.issuer,
            "client_id": made.client_id,
            "expires": None if ends is None else ends.isoformat(),
            "renews": renews,
        }
        _print(json.dumps(done))
        return
    until = "" if ends is None else f", until {ends:%Y-%m-%d %H:%M} UTC"
    life = "; the token renews itself" if renews else until
    print_message(f"splitarrow: logged in to {escape_text(made.server)}{life}")


def logout(uri: ControlUri, as_json: AsJson = False) -> None:
    """Remove the kept token of a server.

    The issuer still accepts the token until it expires.

    [dim]splitarrow logout grpc+tls://node1:8815[/dim]
    """
    from ..client.rpc.logins import LoginStore

    server = _parse_server(uri)
    store = LoginStore(server.address)
    with store.lock():
        removed = store.remove()
    if as_json:
        _print(json.dumps({"server": server.address, "removed": removed}))
    else:
        state = "logged out of" if removed else "there was no login at"
        print_message(f"splitarrow: {state} {escape_text(server.address)}")


def _parse_server(uri: str) -> DataUri:
    uris = parse_control_uris(uri)
    if len(uris) > 1:
        raise UsageError("name one server; each server has a login of its own")
    return uris[0]


def _ask_server(server: DataUri, connect_timeout: float) -> IssuerHint:
    """Return what a server states about its issuer, over a connection without a token."""
    from ..client.rpc.channel import FlightChannel
    from ..client.rpc.oauth import is_loopback, parse_hint

    if server.scheme == "grpc" and not is_loopback(server.host):
        print_message(
            f"splitarrow: warning: the connection to {escape_text(server.address)} is not "
            "encrypted: others can name another issuer, and read your token"
        )
    channel = FlightChannel(server, None, None, connect_timeout, connect_timeout)
    try:
        return parse_hint(channel.ask_issuer(), server.address)
    except DeniedError:
        raise UsageError(f"{server.address} does not support logins") from None
    finally:
        channel.close()


def _log_in(
    server: DataUri,
    hint: IssuerHint,
    client_id: str | None,
    secret: str | None,
    scope: str | None,
    *,
    as_json: bool,
) -> Login:
    from ..client.rpc.logins import Login
    from ..client.rpc.oauth import (
        OAuthClient,
        discover,
        is_loopback,
        request_client_tokens,
        start_device_login,
        wait_for_approval,
    )

    local = is_loopback(server.host)
    issuer = discover(hint.issuer, local=local)
    if secret is not None and client_id is None:
        raise UsageError("a client secret needs --client-id")
    client_id = client_id or hint.client_id
    if client_id is None:
        raise UsageError(f"{server.address} names no client; pass --client-id")
    client = OAuthClient(client_id, secret)
    scope, audience = scope or hint.scope, hint.audience
    if secret is not None:
        tokens = request_client_tokens(issuer, client, scope, audience)
    else:
        code = start_device_login(issuer, client, scope, audience, local=local)
        _show_code(issuer.issuer, client, code, as_json=as_json)
        tokens = wait_for_approval(issuer, client, code)
    return Login(
        server.address,
        issuer.issuer,
        issuer.token_endpoint,
        client_id,
        scope,
        audience,
        tokens.access_token,
        tokens.refresh_token,
        secret,
        time.time(),
        tokens.expires,
    )


def _show_code(issuer: str, client: OAuthClient, code: DeviceCode, *, as_json: bool) -> None:
    if as_json:
        fields = {
            "issuer": issuer,
            "client_id": client.client_id,
            "verification_uri": code.verification_uri,
            "verification_uri_complete": code.complete_uri,
            "user_code": code.user_code,
            "expires_in": code.seconds,
        }
        _print(json.dumps(fields))
        return
    shown = escape_text(code.user_code)
    _print(f"Open {escape_text(code.verification_uri)} and enter the code {shown}")
    if code.complete_uri is not None:
        _print(f"or open {escape_text(code.complete_uri)} and compare the code")
    print_message(
        f"splitarrow: {escape_text(issuer)} asks you to let {escape_text(client.client_id)} log in"
    )


def _print(text: str) -> None:
    with standard_output():
        print(text)


def _read_secret(path: str | None) -> str | None:
    """Return the secret of a file, a prompt, or the environment; None if there is none."""
    if path is None:
        secret = os.environ.get(_SECRET_VARIABLE) or None
    elif path == "-":
        secret = _prompt()
    else:
        try:
            secret = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise UsageError(f"cannot read the secret in {path}: {reason}") from None
    if secret is None:
        return None
    secret = secret.strip()
    if not secret or not secret.isprintable():
        raise UsageError("the secret of the client is empty, or not printable text")
    return secret


def _prompt() -> str:
    if not is_terminal(sys.stdin):
        return sys.stdin.readline()
    from getpass import getpass

    return getpass("Secret of the client: ")
