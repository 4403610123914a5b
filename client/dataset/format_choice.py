"""The choice of a format for a dataset of a control plane."""

from __future__ import annotations

from typing import Any

from ..stream.batch_stream import BatchStream
from ..stream.format_choice import AUTO, CHOOSER, FormatChoice


def choose_for_dataset(client: Any, name: str, **options: Any) -> FormatChoice:
    """Choose the format of a dataset; see `FormatChooser`.

    Parameters
    ----------
    client : Client or ClusterClient
        The client.
    name : str
        The dataset.
    **options
        Further arguments of ``read``. The transport is part of the peer.
    """

    def open_stream(data_format: str, limit: int | None) -> BatchStream:
        return client.read(name, format=data_format, limit=limit, parallel=1, **options)

    return CHOOSER.choose(f"{client.uri} {options.get('transport')}", open_stream)


def resolve_format(client: Any, name: str, data_format: str | None, **options: Any) -> str | None:
    """Return the format to request; ``auto`` is chosen as by `choose_for_dataset`."""
    if data_format != AUTO:
        return data_format
    return choose_for_dataset(client, name, **options).format
