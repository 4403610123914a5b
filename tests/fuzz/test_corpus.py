"""The inputs that the fuzzer found worth keeping do no harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.targets import ACTIONS, TARGETS
from helpers.control_plane import bearer, running

CORPUS = Path(__file__).with_name("corpus")


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_does_no_harm(name: str) -> None:
    inputs = sorted((CORPUS / name).iterdir())
    assert len(inputs) > 5
    with TARGETS[name]() as attack:
        for path in inputs:
            attack(path.read_bytes())


def test_every_action_is_attacked() -> None:
    with running() as server, server.client() as client:
        listed = [action.type for action in client.list_actions(bearer("none"))]
    assert sorted(listed) == sorted(ACTIONS)
