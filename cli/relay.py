"""``splitarrow relay``: serve the datasets of other servers, and cache their shards."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..client.uris import parse_control_uris
from ..errors import ConfigError, UsageError
from ..formats.text import parse_size
from ..server.config import Configuration
from .connection import Token
from .options import option, with_parameters
from .serve import list_setting_parameters, print_banner, shows_banner

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
    "token": Token,
}
_DEFAULTS: dict[str, Any] = {
    "cache": None,
    "cache_bytes": "10GiB",
    "offline": "allow",
    "prefetch_bytes": "1GiB",
}


def _parameters() -> Iterator[Parameter]:
    for name, annotation in _OWN.items():
        default = Parameter.empty if name == "upstream" else _DEFAULTS.get(name)
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    for parameter in list_setting_parameters():
        if parameter.name not in _WITHOUT:
            yield parameter


@with_parameters(_parameters())
def relay(
    upstream: str,
    cache: Path | None,
    cache_bytes: str,
    offline: Literal["allow", "refuse"],
    prefetch_bytes: str,
    rate: str | None,
    token: str | None,
    config: Path | None,
    **options: Any,
) -> int:
    """Serve the datasets of other servers to readers near by, until SIGTERM or Ctrl-C.

    A shard of a published dataset is fetched once, and kept in the cache. Other datasets pass
    through.

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
    ahead, speed = parse_size(prefetch_bytes), None if rate is None else parse_size(rate)
    if speed == 0:
        raise UsageError("--rate is 0; expected more, or --prefetch-bytes 0 to fetch nothing ahead")
    relayed = RelayOptions(uris, cache, token, offline, ahead, speed)
    banner = print_banner if shows_banner(settings) else None
    return serve_process(configuration, banner, lambda loaded: Relay(relayed, loaded))
