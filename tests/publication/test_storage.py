"""Locations of published datasets: paths, URLs and the credentials for object stores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from splitarrow.errors import UsageError
from splitarrow.publication.storage import (
    LocalStorage,
    check_credentials,
    is_object_url,
    is_storage_url,
    open_storage,
)


@pytest.mark.parametrize(
    ("location", "is_url", "is_object", "folder"),
    [
        ("a/b", False, False, "a/b"),
        ("file", False, False, "file"),
        ("s3", False, False, "s3"),
        ("file:///a/b%20c", True, False, "/a/b c"),
        ("file://localhost/a", True, False, "/a"),
        ("gs://lake/a", True, True, None),
        ("az://lake/a", True, True, None),
        ("s3://lake/a", True, True, None),
    ],
)
def test_a_location_is_a_path_or_a_url(
    location: str, is_url: bool, is_object: bool, folder: str | None
) -> None:
    assert (is_storage_url(location), is_object_url(location)) == (is_url, is_object)
    if folder is not None:
        storage = open_storage(location)
        assert isinstance(storage, LocalStorage)
        assert storage.folder == Path(folder).absolute()


@pytest.mark.parametrize(
    ("location", "problem"),
    [
        ("file://host/a", "must have an absolute path and no host"),
        ("file://localhost", "must have an absolute path and no host"),
        ("http://host/a", "unsupported scheme 'http'"),
    ],
)
def test_other_urls_are_refused(location: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        open_storage(location)
    assert not is_object_url(location)


@pytest.mark.parametrize(
    ("location", "variable"),
    [
        ("s3://lake/a", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        ("s3://lake/a", "AWS_METADATA_ENDPOINT"),
        ("s3://lake/a", "AWS_SKIP_SIGNATURE"),
        ("gs://lake/a", "GOOGLE_SERVICE_ACCOUNT"),
        ("az://lake/a", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("az://lake/a", "IDENTITY_ENDPOINT"),
    ],
)
def test_any_one_variable_gives_access(location: str, variable: str) -> None:
    check_credentials(location, {variable: "x"})
    for environ in ({}, {variable: ""}, {"HOME": "/nowhere", "OTHER": "x"}):
        with pytest.raises(UsageError, match=r"no credentials in the environment; set A|G"):
            check_credentials(location, environ)


def test_a_file_of_the_command_of_the_store_gives_access(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    file = tmp_path / ".config" / "gcloud" / "application_default_credentials.json"
    with pytest.raises(UsageError, match="GOOGLE_APPLICATION_CREDENTIALS"):
        check_credentials("gs://lake/a", home)
    file.parent.mkdir(parents=True)
    file.touch()
    check_credentials("gs://lake/a", home)
    with pytest.raises(UsageError, match="AWS_ACCESS_KEY_ID"):
        check_credentials("s3://lake/a", home)
    check_credentials("data/a", {})


@pytest.mark.parametrize("follows", [True, False])
def test_the_files_of_a_folder_and_of_all_folders_are_listed(tmp_path: Path, follows: bool) -> None:
    storage = LocalStorage(tmp_path, follow_symlinks=follows)
    assert storage.create("one.txt", b"1")
    assert storage.create("a/two.txt", b"2")
    for folder, names in (("", ["/a/two.txt", "/one.txt"]), ("a", ["a/two.txt"]), ("b", [])):
        assert [entry.name for entry in storage.list_objects(folder)] == names


def test_a_new_name_is_durable_when_create_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    sync = os.fsync

    def record(descriptor: int) -> None:
        sync(descriptor)
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), (tmp_path / "name").exists()))

    monkeypatch.setattr(os, "fsync", record)
    storage = open_storage(str(tmp_path))
    assert storage.create("name", b"data")
    assert synced[-1] == (str(tmp_path), True)
