"""Datasets that are published here shard by shard: staged, then committed as one version."""

from __future__ import annotations

import secrets
import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ...errors import (
    DatasetError,
    ExhaustedError,
    InvalidRequestError,
    RemoteError,
    SplitArrowError,
    remote_error,
)
from ...formats.manifest import RESERVED, Manifest, ShardEntry
from ...protocol.limits import Limits
from ..catalog.shard_files import file_sha256
from ..catalog.versions import VersionStore
from ..logs import get_logger
from .naming import FOLDER_SUFFIX, TEMPORARY, file_name
from .ports import CatalogPort
from .quota import Quota
from .shards import Order, ShardKey, ShardUpload
from .upload import Upload

_NOTE = ".json"
_MOST_NAMED = 12


class Publications:
    """The published datasets of a directory. Its methods block; any thread may call them.

    Parameters
    ----------
    directory : Path
        The directory of uploads; each published dataset is a folder in it.
    catalog : CatalogPort
        Where they appear once they have a version.
    quota : Quota
        How many bytes they may take.
    """

    def __init__(self, directory: Path, catalog: CatalogPort, quota: Quota) -> None:
        self._directory = directory
        self._catalog = catalog
        self._quota = quota
        self._lock = threading.RLock()
        self._served: set[str] = set()
        self._jobs: dict[str, dict[str, int]] = {}
        self._log = get_logger("publications")

    def begin(self, key: ShardKey, limits: Limits) -> ShardUpload:
        """Return a new upload of a shard; the caller finishes or aborts it.

        Raises
        ------
        InvalidRequestError
            If the name cannot be that of a published dataset.
        RemoteError
            With the code ALREADY_EXISTS if another kind of dataset has the name.
        """
        self._folder(key.dataset)
        self._check_free(key.dataset)
        path = self._directory / f"{TEMPORARY}{secrets.token_hex(16)}"
        return ShardUpload(self, key, path, limits)

    def reserve(self, upload: Upload, nbytes: int) -> None:
        """Note that an upload takes this many bytes; raise `ExhaustedError`."""
        try:
            self._quota.reserve(upload, nbytes, upload.name)
        except ExhaustedError:
            self.recount()
            self._quota.reserve(upload, nbytes, upload.name)

    def recount(self) -> None:
        """Look how many bytes there are now: old versions may have been removed meanwhile."""
        with self._lock:
            for name in self._served:
                self._quota.keep(("published", name), _size(self._folder(name) / "data"))

    def commit(self, upload: Upload) -> None:
        """Put a finished file into the staging of its job, in place of one from before.

        Raises
        ------
        RemoteError
            With the code FAILED_PRECONDITION if the job is published, and the shard is another.
        """
        assert isinstance(upload, ShardUpload)
        key = upload.key
        with self._lock:
            if key.job in self._jobs.get(key.dataset, {}):
                upload.entry = self._published_before(key, file_sha256(upload.path))
                upload.path.unlink()
                return
        store = self._store(key.dataset)
        file = f"{key.ordinal:08d}.arrow"
        schema, entry = store.stage_file(key.job, file, upload.path, ordinal=key.ordinal)
        note = Manifest(
            version=1,
            created=datetime.now(UTC),
            job=key.job,
            schema=schema,
            shards=(entry,),
            shards_total=key.ordinal + 1,
        )
        with self._lock:
            path = self._note(key)
            self._remove_older(path, entry)
            temporary = path.with_suffix(".new")
            temporary.write_bytes(note.to_json())
            temporary.replace(path)
            upload.entry = entry
            self._quota.settle(upload, key)

    def forget(self, upload: Upload) -> None:
        """Take back what was reserved for an upload that is over."""
        self._quota.release(upload)

    def publish(self, order: Order) -> dict[str, Any]:
        """Make the shards of a job a version; the same job again gives the version that it is.

        Returns
        -------
        dict
            What the version has here: ``dataset``, ``version``, ``snapshot``, ``shards``,
            ``rows``, ``bytes``.

        Raises
        ------
        RemoteError
            With the code FAILED_PRECONDITION if a shard is missing, or schemas differ.
        """
        name = order.dataset
        folder = self._folder(name)
        with self._lock:
            self._check_free(name)
            store = VersionStore(folder)
            known = self._jobs.get(name, {}).get(order.job)
            if known is not None:
                manifest = store.load(known)
                self._check_made(order, store, manifest)
            else:
                keys = self._staged_keys(name, order.job)
                manifest = self._committed(order, store)
                for key in keys:
                    self._quota.release(key)
                self._jobs.setdefault(name, {})[order.job] = manifest.version
            if name not in self._served:
                self._catalog.add(name, folder)
                self._served.add(name)
            self._clear(name, order.job)
            self._quota.keep(("published", name), _size(folder / "data"))
        assert manifest is not None
        self._log.info("dataset published", dataset=name, version=manifest.version)
        return {
            "dataset": name,
            "version": manifest.version,
            "snapshot": manifest.snapshot,
            "shards": len(manifest.shards),
            "rows": manifest.rows,
            "bytes": manifest.nbytes,
        }

    def discard(self, name: str, job: str) -> None:
        """Remove what was uploaded for a job that was not published. Idempotent."""
        with self._lock:
            store = self._store(name)
            if job not in self._jobs.get(name, {}):
                self._clear(name, job)
                store.discard(job)

    def drop(self, name: str) -> bool:
        """Remove a published dataset; return whether there was one."""
        with self._lock:
            if name not in self._served:
                return False
            self._catalog.remove(name)
            self._served.discard(name)
            self._jobs.pop(name, None)
            self._quota.release(("published", name))
            for key in list(self._staged_keys(name)):
                self._quota.release(key)
            gone = self._directory / f"{TEMPORARY}{secrets.token_hex(16)}"
            self._folder(name).rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        self._log.info("dataset dropped", dataset=name)
        return True

    def find(self) -> None:
        """Serve what was published before; count what is staged, since its job may go on."""
        for folder in sorted(self._directory.iterdir()):
            if not folder.is_dir() or folder.is_symlink():
                continue
            if folder.name.startswith(TEMPORARY):
                shutil.rmtree(folder, ignore_errors=True)
                continue
            name = unquote(folder.name.removesuffix(FOLDER_SUFFIX), errors="replace")
            try:
                if self._folder(name) != folder:
                    continue
                self._find(name, folder)
            except InvalidRequestError:
                continue
            except (SplitArrowError, OSError) as error:
                self._log.error("published dataset not served", dataset=name, reason=str(error))

    def _find(self, name: str, folder: Path) -> None:
        for key, nbytes in self._staged_keys(name).items():
            self._quota.keep(key, nbytes)
        store = VersionStore(folder)
        versions = store.versions()
        if not versions:
            return
        jobs: dict[str, int] = {}
        for version in versions:
            manifest = store.load(version)
            if manifest is not None:
                jobs[manifest.job] = manifest.version
        self._jobs[name] = jobs
        self._quota.keep(("published", name), _size(folder / "data"))
        self._catalog.add(name, folder)
        self._served.add(name)

    def _committed(self, order: Order, store: VersionStore) -> Manifest:
        staged = self._staged(order)
        schema = order.schema
        for ordinal, note in staged.items():
            if schema is not None and not note.schema.equals(schema):
                raise _refused(order, f"shard {ordinal} has another schema than the others")
            schema = note.schema
        before = store.load()
        if order.append and before is not None:
            if schema is not None and not before.schema.equals(schema):
                raise _refused(order, "its schema is another than that of the version before")
            schema = before.schema
        if schema is None:
            raise _refused(order, "there is no shard that tells the schema: say it")
        return store.commit(
            order.job,
            schema,
            [shard for note in staged.values() for shard in note.shards],
            append=order.append,
            properties=dict(order.properties),
            snapshot=order.snapshot,
            shards_total=order.shards_total,
        )

    def _staged(self, order: Order) -> dict[int, Manifest]:
        """Return what is known of the shards that are wanted.

        Raises
        ------
        RemoteError
            If one is missing.
        """
        found: dict[int, Manifest] = {}
        missing: list[int] = []
        for ordinal in sorted(order.ordinals):
            note = self._note(ShardKey(order.dataset, order.job, ordinal))
            try:
                found[ordinal] = Manifest.from_json(note.read_bytes(), str(note))
            except (FileNotFoundError, DatasetError):
                missing.append(ordinal)
        if missing:
            raise _refused(order, f"{_shards(missing)} was not uploaded here")
        return found

    def _check_made(self, order: Order, store: VersionStore, manifest: Manifest | None) -> None:
        """Refuse another publication under the name of a job that was published."""
        if manifest is None:
            raise _refused(order, "its version is gone")
        base = manifest.shards_total - order.shards_total if order.append else 0
        mine = {shard.path: shard.ordinal - base for shard in _of_job(manifest, order.job)}
        if differing := sorted(frozenset(mine.values()) ^ order.ordinals):
            raise _refused(
                order, f"it is published already, and {_shards(differing)} is not the same"
            )
        if manifest.snapshot != order.snapshot:
            raise _refused(order, f"it is published already, as snapshot {manifest.snapshot!r}")
        current = store.load()
        if current is None or not mine.keys() <= {shard.path for shard in current.shards}:
            raise _refused(
                order,
                f"it is published already, as version {manifest.version}, and a later version is "
                "without it: publish under another job",
            )

    def _remove_older(self, note: Path, entry: ShardEntry) -> None:
        """Remove what was staged before as the same shard, if it is another file."""
        try:
            (older,) = Manifest.from_json(note.read_bytes(), str(note)).shards
        except (FileNotFoundError, DatasetError):
            return
        if older.path != entry.path:
            note.with_name(older.path.rpartition("/")[2]).unlink(missing_ok=True)

    def _published_before(self, key: ShardKey, sha256: str) -> ShardEntry:
        manifest = self._store(key.dataset).load(self._jobs[key.dataset][key.job])
        for shard in () if manifest is None else _of_job(manifest, key.job):
            if shard.sha256 == sha256:
                return shard
        raise remote_error(
            "FAILED_PRECONDITION",
            f"the job {key.job!r} of {key.dataset!r} is published: its shard {key.ordinal} cannot "
            "be another now",
            stream=key.dataset,
        )

    def _check_free(self, name: str) -> None:
        if name not in self._served and name in self._catalog.names():
            raise remote_error(
                "ALREADY_EXISTS",
                f"the dataset {name!r} is none that was published here; it cannot be replaced",
                stream=name,
            )

    def _clear(self, name: str, job: str) -> None:
        for key in self._staged_keys(name, job):
            self._quota.release(key)
        shutil.rmtree(self._staging(name) / job, ignore_errors=True)

    def _staged_keys(self, name: str, job: str = "*") -> dict[ShardKey, int]:
        """Return which shards are staged, and how many bytes each has."""
        found: dict[ShardKey, int] = {}
        for path in self._staging(name).glob(f"{job}/*{_NOTE}"):
            try:
                key = ShardKey(name, path.parent.name, int(path.stem))
                found[key] = Manifest.from_json(path.read_bytes(), str(path)).nbytes
            except (SplitArrowError, OSError, ValueError):
                continue
        return found

    def _store(self, name: str) -> VersionStore:
        return VersionStore(self._folder(name))

    def _folder(self, name: str) -> Path:
        return self._directory / file_name(name, FOLDER_SUFFIX)

    def _staging(self, name: str) -> Path:
        return self._folder(name) / RESERVED / "staging"

    def _note(self, key: ShardKey) -> Path:
        return self._staging(key.dataset) / key.job / f"{key.ordinal:08d}{_NOTE}"


def _of_job(manifest: Manifest, job: str) -> list[ShardEntry]:
    return [shard for shard in manifest.shards if shard.path.startswith(f"data/{job}/")]


def _refused(order: Order, why: str) -> RemoteError:
    return remote_error(
        "FAILED_PRECONDITION",
        f"the job {order.job!r} of {order.dataset!r} cannot be published: {why}",
        stream=order.dataset,
    )


def _shards(ordinals: list[int]) -> str:
    named = ", ".join(map(str, ordinals[:_MOST_NAMED]))
    more = len(ordinals) - _MOST_NAMED
    return f"shard {named}" + (f" and {more} more" if more > 0 else "")


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*.arrow"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # removed meanwhile
    return total
