"""Output files and signals."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from splitarrow.cli.exit_status import Terminated, report_error
from splitarrow.cli.output_file import OutputFile


def test_a_signal_right_after_the_creation_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = os.close

    def terminate(descriptor: int) -> None:
        close(descriptor)
        raise Terminated(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", terminate)
        with pytest.raises(Terminated), OutputFile(tmp_path / "out.arrow"):
            pytest.fail("the context was entered")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_exit_status_states_the_signal(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_error(Terminated(number)) == 128 + number
    assert capsys.readouterr() == ("", "")


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "out.arrow"
    path.touch()
    for mode in (0o600, 0o666, 0o444):
        path.chmod(mode)
        with OutputFile(path, sync=False) as output:
            output.part.write_bytes(b"new")
        assert path.stat().st_mode & 0o777 == mode
