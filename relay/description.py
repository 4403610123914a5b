"""What relays state about themselves, so that they find loops and know their peers."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ..client.dataset.client import Client
from ..errors import ConfigError, ProtocolError, RemoteError

ACTION = "relay"
"""The action that a relay describes itself with."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MAX_RELAYS = 1024


class RelayLoopError(ConfigError):
    """A relay is its own upstream, perhaps through other relays."""


@dataclass(frozen=True, slots=True)
class RelayDescription:
    """A relay, and its place above the daemons that have the data."""

    id: str
    """The identifier of the relay, which no other running relay has."""
    level: int = 1
    """The number of relays between its readers and the data, itself included."""
    upstreams: tuple[str, ...] = ()
    """The identifiers of all relays between it and the data."""

    def encode(self) -> bytes:
        """Return the description as JSON."""
        return json.dumps(asdict(self)).encode()


def make_id(descriptor: int) -> str:
    """Return the identifier of the relay that has a file open, which no other relay opens.

    A restart does not change it. The copy of a cache has another one.
    """
    try:
        boot = _BOOT_ID.read_text()
    except OSError:
        boot = secrets.token_hex(16)
    status = os.fstat(descriptor)
    key = f"{boot.strip()} {status.st_dev} {status.st_ino}"
    return blake2b(key.encode(), digest_size=16).hexdigest()


def describe_above(id: str, above: list[RelayDescription]) -> RelayDescription:
    """Return the description of a relay from those of the relays that are its upstream.

    Examples
    --------
    >>> describe_above("b", [describe_above("a", [])])
    RelayDescription(id='b', level=2, upstreams=('a',))
    """
    names = {name for each in above for name in (each.id, *each.upstreams)}
    level = 1 + max((each.level for each in above), default=0)
    return RelayDescription(id, level, tuple(sorted(names)))


def read_description(client: Client) -> RelayDescription | None:
    """Return the description of a relay; None if the daemon is not a relay."""
    try:
        answer = client.act(ACTION)
    except RemoteError as error:
        if error.code == "UNIMPLEMENTED":
            return None
        raise
    try:
        fields: dict[str, Any] = json.loads(answer)
        names: list[str] = fields["upstreams"]
        if len(names) > _MAX_RELAYS:
            raise ValueError
        return RelayDescription(str(fields["id"]), int(fields["level"]), tuple(map(str, names)))
    except (ValueError, RecursionError, KeyError, TypeError):
        raise ProtocolError(f"{client.uri} sent a malformed description of a relay") from None
