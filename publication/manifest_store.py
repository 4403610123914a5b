"""Reading and creating the manifests of a published dataset.

A version exists if and only if its manifest exists. The current version is the one with the
highest number. Nothing here removes a manifest; see `retention`.
"""

from __future__ import annotations

from ..errors import DatasetError
from .layout import VERSIONS, format_manifest_name, parse_manifest_name
from .manifest import Manifest
from .manifest_json import decode_manifest, encode_manifest
from .storage.base import Storage


class ManifestStore:
    """The manifests of one dataset. Safe to use from several threads and processes.

    Every method raises `DatasetError` if the storage cannot be read or written.

    Parameters
    ----------
    storage : Storage
        The storage of the dataset.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        """The storage of the dataset."""

    def list_versions(self) -> list[int]:
        """Return the numbers of the existing versions in ascending order."""
        versions = (
            parse_manifest_name(entry.name) for entry in self.storage.list_objects(VERSIONS)
        )
        return sorted(version for version in versions if version is not None)

    def load(self, version: int) -> Manifest | None:
        """Return the manifest of a version; None if the version does not exist.

        Raises
        ------
        DatasetError
            If the manifest is malformed, or is that of another version.
        """
        name = format_manifest_name(version)
        data = self.storage.read(name)
        if data is None:
            return None
        label = f"{self.storage.location}/{name}"
        manifest = decode_manifest(data, label)
        if manifest.version != version:
            raise DatasetError(
                f"{label} is not a valid manifest: version is {manifest.version}; "
                f"expected {version}"
            )
        return manifest

    def load_current(self) -> Manifest | None:
        """Return the manifest of the current version; None if there is no version."""
        while versions := self.list_versions():
            manifest = self.load(versions[-1])
            if manifest is not None:  # not pruned since the versions were listed
                return manifest
        return None

    def create(self, manifest: Manifest) -> bool:
        """Create the manifest of a new version.

        Returns
        -------
        bool
            Whether it was created. If not, the version exists already.
        """
        name = format_manifest_name(manifest.version)
        return self.storage.create(name, encode_manifest(manifest))

    def find_job(self, job: str, after: int = 0) -> tuple[int, Manifest | None]:
        """Find the version that a job committed.

        Parameters
        ----------
        job : str
            The job.
        after : int
            Look only at versions with a higher number.

        Returns
        -------
        version : int
            The version that the job committed. If there is none, the highest version.
        manifest : Manifest or None
            The manifest of the version that the job committed.
        """
        highest = after
        for version in self.list_versions():
            if version > after:
                highest = version
                data = self.storage.read(format_manifest_name(version))
                if data is not None and job.encode() in data:
                    manifest = self.load(version)
                    if manifest is not None and manifest.job == job:
                        return version, manifest
        return highest, None
