"""A file has its name when it is complete, and not before."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitarrow.publication.atomic_files import (
    AtomicFile,
    create_folder,
    sync_folder,
    write_atomic,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_gets_its_name_when_the_context_ends(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with AtomicFile(path) as file:
        file.temporary.write_text("new")
        file.sync()
        assert path.read_text() == "old"
        assert file.temporary.parent == tmp_path
    sync_folder(tmp_path)
    assert path.read_text() == "new"
    assert names(tmp_path) == ["file"]


def test_an_error_leaves_the_previous_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    file = AtomicFile(path)
    file.temporary.write_text("half")
    with pytest.raises(ValueError, match="interrupted"), file:
        raise ValueError("interrupted")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_an_error_before_the_first_byte_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="interrupted"), AtomicFile(tmp_path / "file"):
        raise ValueError("interrupted")
    assert names(tmp_path) == []


def test_without_overwriting_one_writer_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "file"
    first, second = (AtomicFile(path, overwrite=False) for _ in range(2))
    for file, text in ((first, "first"), (second, "second")):
        file.temporary.write_text(text)
    first.commit()
    with pytest.raises(FileExistsError):
        second.commit()
    second.discard()
    assert path.read_text() == "first"
    assert names(tmp_path) == ["file"]


def test_a_temporary_name_may_be_given(tmp_path: Path) -> None:
    path, temporary = tmp_path / "file", tmp_path / "other"
    with AtomicFile(path, temporary=temporary) as file:
        assert file.temporary == temporary
        temporary.write_text("text")
    assert names(tmp_path) == ["file"]


def test_a_file_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "absent" / "file", b"data")
    write_atomic(tmp_path / "file", b"data")
    assert (tmp_path / "file").read_bytes() == b"data"
    assert names(tmp_path) == ["file"]


def test_a_folder_is_created_with_those_that_it_is_in(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "c"
    for _ in range(2):
        create_folder(folder)
        assert folder.is_dir()
    (folder / "file").touch()
    with pytest.raises(FileExistsError):
        create_folder(folder / "file")
