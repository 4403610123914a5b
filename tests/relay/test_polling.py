"""A relay asks its upstream for versions, and for descriptions once a version has changed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from helpers.daemons import StartDaemon
from helpers.publication import numbers, publish
from helpers.relays import CONTROL
from splitarrow.client.dataset.client import Client
from splitarrow.protocol.uri import DataUri
from splitarrow.publication.version_store import VersionStore
from splitarrow.relay.relay import Relay, RelayOptions
from splitarrow.server.catalog.catalog import open_catalog
from splitarrow.server.config import load_settings


def test_datasets_are_described_again_once_a_version_has_changed(
    tmp_path: Path, daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = VersionStore(str(tmp_path / "published"))
    publish(store, "first", numbers(0, 10))
    upstream = daemon({"trips": store.location}, control=CONTROL)
    listings: list[str] = []
    list_datasets = Client.datasets

    def count(client: Client, glob: str | None = None) -> Any:
        listings.append(client.uri)
        return list_datasets(client, glob)

    monkeypatch.setattr(Client, "datasets", count)
    options = RelayOptions((DataUri.parse(str(upstream.control_uri)),), tmp_path / "cache")
    settings = load_settings(object_cache=tmp_path / "cache" / "objects")
    with open_catalog({}, settings) as catalog, closing(Relay(options, settings)) as relay:
        relay.start(catalog)
        relay.update()
        assert len(listings) == 1
        publish(store, "second", numbers(0, 20))
        relay.update()
        assert len(listings) == 2
        assert catalog.lookup("trips").rows == 20
