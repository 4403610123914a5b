"""Files that change are read again, and never worse than before."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from splitarrow.errors import ConfigError
from splitarrow.transport.credential_files import Reloadable, is_world_readable


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


class Reading:
    """Reads a file, counts how often, and refuses what says so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.told: list[str] = []
        self.clock = Clock()

    def __call__(self) -> str:
        self.count += 1
        text = self.path.read_text() if self.path.exists() else "refused: no file"
        if text.startswith("refused"):
            raise ConfigError(text)
        return text

    def watched(self) -> Reloadable[str]:
        return Reloadable([self.path], self, on_failure=self.told.append, clock=self.clock)


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    (tmp_path / "file").write_text("one")
    return Reading(tmp_path / "file")


def test_it_is_read_when_it_changes_and_only_then(reading: Reading) -> None:
    watched = reading.watched()
    for _ in range(5):
        reading.clock.now += 1
        assert watched.current() == "one"
    assert reading.count == 1
    reading.path.write_text("three")
    assert watched.current() == "one"
    reading.clock.now += 0.9
    assert watched.current() == "one"
    reading.clock.now += 0.1
    assert watched.current() == "three"
    assert reading.count == 2


def test_the_first_reading_has_to_be_good(reading: Reading) -> None:
    reading.path.write_text("refused")
    with pytest.raises(ConfigError):
        reading.watched()


def test_a_bad_change_is_told_once_and_not_taken_over(reading: Reading) -> None:
    watched = reading.watched()
    for text in ("refused: a", "refused: bb"):
        reading.path.write_text(text)
        for _ in range(4):
            reading.clock.now += 1
            assert watched.current() == "one"
    reading.path.unlink()
    reading.clock.now += 1
    assert watched.current() == "one"
    assert reading.told == ["refused: a", "refused: bb", "refused: no file"]
    reading.path.write_text("back")
    reading.clock.now += 1
    assert watched.current() == "back"


def test_a_relinked_file_counts(reading: Reading, tmp_path: Path) -> None:
    """As volumes of secrets do it: a link that is turned to another folder."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    link = tmp_path / "link"
    link.symlink_to("a")
    reading.path = link / "file"
    watched = reading.watched()
    assert watched.current() == "a"
    (tmp_path / "new").symlink_to("b")
    (tmp_path / "new").rename(link)
    reading.clock.now += 1
    assert watched.current() == "b"


def test_many_threads_read_it_once(reading: Reading) -> None:
    watched = reading.watched()
    reading.path.write_text("three")
    reading.clock.now += 1
    seen: list[str] = []
    threads = [threading.Thread(target=lambda: seen.append(watched.current())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) <= {"one", "three"}
    assert watched.current() == "three"
    assert reading.count == 2


def test_who_may_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch(0o640)
    path.chmod(0o640)
    assert not is_world_readable(path)
    path.chmod(0o644)
    assert is_world_readable(path)
    assert not is_world_readable(tmp_path / "none")
