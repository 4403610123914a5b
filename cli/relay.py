"""``splitarrow relay``: serve the datasets of other servers, and cache their shards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..client.tokens import parse_token
from ..client.uris import parse_control_uris
from ..errors import ConfigError, UsageError
from ..formats.text import format_bytes, parse_size
from ..server.config import Configuration
from .connection import (
    TOKEN_FILE_VARIABLE,
    AsJson,
    ConnectTimeout,
    ControlUri,
    Token,
    open_single_client,
    resolve_token,
    with_tls_options,
)
from .formatting import escape_text, format_count
from .options import Subcommands, flag, option, with_parameters
from .serve import list_setting_parameters, print_banner, shows_banner
from .terminal import print_message, standard_output, track

_WITHOUT = ("datasets", "object_cache", "object_cache_bytes", "keep_versions", "workers")
"""The settings that a relay sets, or does not have."""
_OWN: dict[str, Any] = {
    "upstream": Annotated[
        str,
        typer.Argument(
            help="The control plane of the upstream, or several with commas between them, as in "
            "grpc://storage1,storage2.",
            metavar="URI",
        ),
    ],
    "cache": Annotated[
        Path | None,
        option(help="The folder of the cache, which one relay uses.", metavar="FOLDER"),
    ],
    "cache_bytes": Annotated[
        str, option(help="The largest size of the cache, as in 500GiB.", metavar="SIZE")
    ],
    "offline": Annotated[
        Literal["allow", "refuse"],
        option(
            help="Whether to serve the shards in the cache while the upstream cannot be reached."
        ),
    ],
    "peers": Annotated[
        str | None,
        option(
            help="The relays of the same level, which are asked for shards before the upstream, "
            "as in grpc://relay1,grpc://relay2. The relay itself may be among them.",
            metavar="URIS",
        ),
    ],
    "prefetch_bytes": Annotated[
        str,
        option(
            help="How much of what readers announce is fetched ahead; 0 fetches nothing ahead.",
            metavar="SIZE",
        ),
    ],
    "rate": Annotated[
        str | None,
        option(help="The most to fetch ahead in a second, as in 100MB.", metavar="SIZE"),
    ],
    "forward_identity": Annotated[
        bool,
        option(
            help="Ask the upstream about the tokens of readers, which may read what they may read "
            "there.",
        ),
    ],
    "token": Token,
    "upstream_token_file": Annotated[
        str | None,
        option(
            help="A file with the relay's token at the upstream, which is read again after a "
            "change.",
            default=f"${TOKEN_FILE_VARIABLE}",
            metavar="FILE",
        ),
    ],
}
_DEFAULTS: dict[str, Any] = {
    "cache": None,
    "cache_bytes": "10GiB",
    "offline": "allow",
    "peers": None,
    "prefetch_bytes": "1GiB",
    "forward_identity": False,
}


def _parameters() -> Iterator[Parameter]:
    for name, annotation in _OWN.items():
        default = Parameter.empty if name == "upstream" else _DEFAULTS.get(name)
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    for parameter in list_setting_parameters():
        if parameter.name not in _WITHOUT:
            yield parameter


@with_tls_options
@with_parameters(_parameters())
def run(
    upstream: str,
    cache: Path | None,
    cache_bytes: str,
    offline: Literal["allow", "refuse"],
    peers: str | None,
    prefetch_bytes: str,
    rate: str | None,
    forward_identity: bool,
    token: str | None,
    upstream_token_file: str | None,
    config: Path | None,
    **options: Any,
) -> int:
    """Serve the datasets of other servers to readers near by, until SIGTERM or Ctrl-C.

    A shard of a published dataset is fetched once, and kept in the cache. Other datasets pass
    through. `splitarrow relay warm` fetches shards before they are needed, `splitarrow relay pin`
    keeps those of a dataset, and `splitarrow relay scrub` checks those in a cache.

    [dim]splitarrow relay grpc://storage1:8815 --cache /nvme/splitarrow --cache-bytes 500GiB
    --control grpc://127.0.0.1:8815[/dim]
    """
    from ..relay.relay import OBJECTS, Relay, RelayOptions
    from ..server.process import serve_process

    if cache is None:
        raise UsageError("--cache is missing: name a folder for the shards")
    uris = tuple(parse_control_uris(upstream))
    given = {name: None if value == [] else value for name, value in options.items()}
    given |= {"object_cache": cache / OBJECTS, "object_cache_bytes": cache_bytes}
    configuration = Configuration(config, given, uses_options=True)
    try:
        settings = configuration.load()
    except ConfigError as error:
        raise UsageError(str(error)) from None
    if settings.workers != 1 or settings.keep_versions is not None:
        raise UsageError("a relay has one process and removes no versions; unset the setting")
    given_token = parse_token(token, upstream_token_file) or resolve_token(None)
    peer_uris = () if peers is None else tuple(parse_control_uris(peers))
    ahead, speed = parse_size(prefetch_bytes), None if rate is None else parse_size(rate)
    if speed == 0:
        raise UsageError("--rate is 0; expected more, or --prefetch-bytes 0 to fetch nothing ahead")
    relayed = RelayOptions(
        uris, cache, given_token, offline, peer_uris, ahead, speed, forward_identity
    )
    banner = print_banner if shows_banner(settings) else None
    return serve_process(configuration, banner, lambda loaded: Relay(relayed, loaded))


@with_tls_options
def warm(
    control: ControlUri,
    names: Annotated[list[str], typer.Argument(help="The datasets.", metavar="NAME ...")],
    shards: Annotated[
        str | None,
        option(help="The ordinals of the shards, as in 0-9,12.", default="all", metavar="LIST"),
    ] = None,
    parallel: Annotated[
        int, option(help="The number of shards to fetch at a time.", min=1, metavar="N")
    ] = 4,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
) -> int:
    """Let a relay fetch shards before they are needed.

    [dim]splitarrow relay warm grpc://127.0.0.1:8815 trips --shards 0-9[/dim]
    """
    with open_single_client(control, token, connect_timeout) as client:
        for name in names:
            info = client.info(name)
            if not info.snapshot:
                raise UsageError(f"{name!r} is not a published dataset, which a relay caches")
            known = [
                index if endpoint.ordinal is None else endpoint.ordinal
                for index, endpoint in enumerate(info.endpoints)
            ]
            chosen = known if shards is None else _parse_shards(shards, known)

            def fetch(ordinal: int, name: str = name, version: str = info.version) -> None:
                # The relay sends the first byte once it has the whole file.
                part: Any = {"shards": [ordinal], "rows": (0, 1), "version": version}
                client.read(name, format="file", **part).read_all()

            with ThreadPoolExecutor(parallel) as threads:
                for _ in track(threads.map(fetch, chosen), name, len(chosen)):
                    pass
            print_message(f"{name}: {format_count(len(chosen), 'shard')} in the cache")
    return 0


@with_tls_options
def pin(
    control: ControlUri,
    names: Annotated[
        list[str] | None, typer.Argument(help="The datasets.", metavar="NAME ...")
    ] = None,
    unpin: Annotated[bool, flag("--unpin", help="Unpin the datasets.")] = False,
    token: Token = None,
    connect_timeout: ConnectTimeout = 10.0,
    as_json: AsJson = False,
) -> int:
    """Keep the current versions of datasets in the cache of a relay.

    Their shards are fetched ahead, and not evicted. Without names, the pinned datasets are listed.
    The token needs the right to write '*'.

    [dim]splitarrow relay pin grpc://127.0.0.1:8815 trips[/dim]
    """
    body = {"datasets": names or [], "pinned": not unpin}
    with open_single_client(control, token, connect_timeout) as client:
        found = json.loads(client.act("pin", json.dumps(body).encode()))
    nbytes, most = int(found["bytes"]), int(found["max_bytes"])
    if as_json:
        with standard_output():
            print(json.dumps(found, ensure_ascii=False))
    for name, size in found["pins"].items() if not as_json else ():
        text = "not at the upstream" if size is None else format_bytes(size)
        print_message(f"{escape_text(name)}: {text} pinned")
    if not found["pins"] and not as_json:
        print_message("no dataset is pinned")
    if nbytes > most:
        print_message(
            f"splitarrow: warning: the pinned datasets have {format_bytes(nbytes)}, but the cache "
            f"keeps at most {format_bytes(most)} of them; enlarge --cache-bytes, or unpin some"
        )
    return 0


def _parse_shards(text: str, known: list[int]) -> list[int]:
    """Return the ordinals that a text such as ``0-9,12`` names."""
    chosen: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise UsageError(f"--shards is {text!r}; expected ordinals such as 0-9,12")
        chosen += range(int(first), int(last or first) + 1)
    if missing := sorted(set(chosen) - set(known)):
        raise UsageError(f"there is no shard {missing[0]}")
    return list(dict.fromkeys(chosen))


def scrub(
    cache: Annotated[Path, option(help="The folder of the cache.", metavar="FOLDER")],
) -> int:
    """Check the SHA-256 of all shards in a cache, and remove those that are damaged.

    The relay may run meanwhile: it fetches them again.

    [dim]splitarrow relay scrub --cache /nvme/splitarrow[/dim]
    """
    from ..publication.shard_files import hash_file
    from ..relay.relay import OBJECTS

    folder = cache / OBJECTS
    if not folder.is_dir():
        raise UsageError(f"{cache} is not the cache of a relay")
    files = [path for path in sorted(folder.iterdir()) if len(path.name) == _SHA256_DIGITS]
    damaged: list[Path] = []
    for path in track(files, str(cache), len(files)):
        with suppress(FileNotFoundError):  # evicted meanwhile
            if hash_file(path) != path.name:
                path.unlink()
                damaged.append(path)
    for path in damaged:
        print_message(f"removed {path}, which was damaged")
    print_message(f"{format_count(len(files), 'shard')} checked, {len(damaged)} damaged")
    return 1 if damaged else 0


_SHA256_DIGITS = 64

relay = Subcommands(
    "Serve the datasets of other servers, and cache their shards.",
    {"run": run, "warm": warm, "pin": pin, "scrub": scrub},
    default="run",
)
