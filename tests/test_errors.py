"""Every error says where it happened, and crosses process boundaries whole."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from splitarrow import errors
from splitarrow.errors import RemoteError, SplitArrowError, remote_error


def tree(root: type[SplitArrowError]) -> Iterator[type[SplitArrowError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


CLASSES = sorted(set(tree(SplitArrowError)), key=lambda kind: kind.__name__)


def test_the_public_names_are_the_tree() -> None:
    others = {"InvalidValueWarning", "exhausted_error", "remote_error", "status_name"}
    assert {kind.__name__ for kind in CLASSES} | others == set(errors.__all__)


def test_the_drawing_shows_each_class() -> None:
    assert all(f" {kind.__name__}" in (errors.__doc__ or "") for kind in CLASSES)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_pickles_with_its_place(kind: type[SplitArrowError]) -> None:
    error = kind("what went wrong", stream="s", sequence=7, tag=1 << 56 | 7, state="streaming")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(error, protocol))
        assert type(copy) is kind
        assert copy.__dict__ == error.__dict__
        assert (str(copy), copy.args) == (str(error), error.args)


def test_the_code_of_a_remote_error_pickles() -> None:
    error = pickle.loads(pickle.dumps(remote_error("UNAUTHENTICATED", "who are you?")))
    assert (type(error).__name__, error.code) == ("DeniedError", "UNAUTHENTICATED")


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if not issubclass(kind, RemoteError)])
def test_the_text_tells_the_place(kind: type[SplitArrowError]) -> None:
    assert str(kind("plain")) == "plain"
    error = kind("broke", stream="flights", sequence=0, tag=0, state="idle")
    assert str(error) == (
        "broke (stream 'flights', sequence 0, tag 0x0000000000000000, state idle)"
    )
