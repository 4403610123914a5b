"""Checking for credentials, before an object store looks for them elsewhere.

Without credentials, the client of a store asks the metadata service of the cloud for some. On other
machines that takes long and fails, and it could hand out the rights of the whole machine. So an
explicit variable has to allow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import UsageError


@dataclass(frozen=True, slots=True)
class _Store:
    """The variables of one kind of store."""

    credentials: Sequence[str]
    """The variables of which any one supplies credentials."""
    metadata: Sequence[str]
    """The variables of which any one allows asking the metadata service."""
    anonymous: str
    """The variable that reads public data without credentials."""
    advice: str
    """What to set."""
    file: str = ""
    """A file below the home folder that holds credentials."""


_STORES: Mapping[str, _Store] = {
    "s3": _Store(
        (
            *("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SESSION_TOKEN"),
            *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
        ),
        ("AWS_METADATA_ENDPOINT", "AWS_IMDSV1_FALLBACK"),
        "AWS_SKIP_SIGNATURE",
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    "gs": _Store(
        (
            *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"),
            *("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT_PATH"),
        ),
        ("GCE_METADATA_HOST", "GCE_METADATA_ROOT"),
        "GOOGLE_SKIP_SIGNATURE",
        "GOOGLE_APPLICATION_CREDENTIALS",
        ".config/gcloud/application_default_credentials.json",
    ),
    "az": _Store(
        (
            *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_SAS_TOKEN"),
            *("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET"),
            *("AZURE_STORAGE_TOKEN", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_USE_AZURE_CLI"),
            *("AZURE_STORAGE_USE_EMULATOR", "AZURE_USE_AZURE_EMULATOR"),
        ),
        ("AZURE_MSI_ENDPOINT", "AZURE_IDENTITY_ENDPOINT", "IDENTITY_ENDPOINT"),
        "AZURE_SKIP_SIGNATURE",
        "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    ),
}


def check_credentials(location: str, environ: Mapping[str, str]) -> None:
    """Raise if the environment has no credentials for an object store.

    Parameters
    ----------
    location : str
        The URL of the data.
    environ : mapping
        The environment variables.

    Raises
    ------
    UsageError
        If there are none. The error names the variables.

    Examples
    --------
    >>> check_credentials("s3://lake/trips", {"AWS_ACCESS_KEY_ID": "me"})
    """
    store = _STORES.get(location.partition("://")[0])
    if store is None:
        return
    known = (*store.credentials, *store.metadata, store.anonymous)
    if any(environ.get(name) for name in known):
        return
    if store.file and Path(environ.get("HOME", "/"), store.file).is_file():
        return
    raise UsageError(
        f"{location}: no credentials in the environment; set {store.advice}, "
        f"{store.anonymous}=true for public data, or {store.metadata[0]} to ask the metadata "
        "service of the cloud"
    )
