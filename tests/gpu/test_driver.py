"""The checking driver itself: it executes late, and ends a process that misuses memory."""

from __future__ import annotations

import ctypes
import signal
from typing import Any

import numpy as np
import pytest

from helpers import cuda

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("checking_driver")]

START = """
    import numpy as np
    from helpers.cuda import Program, call
    program = Program()
    stream = program.open_stream()
    data = int(call("cuMemHostAlloc", 4096, 0))
    target = program.allocate(4096)
"""


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("program.free(target); program.free(target)", "no allocation begins there"),
        ("program.free(target + 512)", "no allocation begins there"),
        ("program.copy_in(target, data, 64, stream); program.free(target)", "a copy is queued"),
        (
            "program.copy_in(target, data, 64, stream); call('cuMemFreeHost', data)",
            "a copy is queued",
        ),
        ("program.copy_in(target, data, 4097, stream)", "leaves an allocation of 4096 bytes"),
        ("call('cuStreamDestroy', stream); program.synchronize(stream)", "was destroyed before"),
        (
            "event = call('cuEventCreate', 2); call('cuEventDestroy', event); "
            "call('cuEventDestroy', event)",
            "there is no such event",
        ),
        (
            "event = call('cuEventCreate', 2); call('cuEventDestroy', event); "
            "call('cuEventSynchronize', event)",
            "was destroyed before",
        ),
    ],
)
def test_misuse_ends_the_process(code: str, message: str) -> None:
    ended = cuda.run_program(START + f"\n    {code}\n")
    assert ended.returncode == -signal.SIGABRT
    assert message in ended.stderr


def test_the_processor_cannot_reach_memory_of_a_device() -> None:
    ended = cuda.run_program(START + "\n    import ctypes; ctypes.string_at(target, 1)\n")
    assert ended.returncode == -signal.SIGSEGV


def test_page_locked_memory_is_read_late_and_pageable_memory_in_the_call() -> None:
    program = cuda.Program()
    stream = program.open_stream()
    page_locked = int(cuda.call("cuMemHostAlloc", 800, 0))
    memory: Any = (ctypes.c_int64 * 100).from_address(page_locked)
    values = np.frombuffer(memory, "int64")
    pageable = np.zeros(100, "int64")
    targets = [program.allocate(800) for _ in range(2)]
    values[:] = 0
    program.copy_in(targets[0], page_locked, 800, stream)
    program.copy_in(targets[1], pageable.ctypes.data, 800, stream)
    values[:], pageable[:] = 1, 1
    program.synchronize(stream)
    assert program.read(targets[0], "int64", 100).all()
    assert not program.read(targets[1], "int64", 100).any()
    for target in targets:
        program.free(target)
    cuda.call("cuMemFreeHost", page_locked)


def test_streams_wait_for_events_and_the_default_stream_for_others() -> None:
    program = cuda.Program()
    first, second = program.open_stream(), program.open_stream()
    one, two, three = (program.allocate(800) for _ in range(3))
    values = np.arange(100)
    program.occupy(first)
    program.copy_in(one, values.ctypes.data, 800, first)
    event = cuda.call("cuEventCreate", 2)
    cuda.call("cuEventRecord", event, first)
    cuda.call("cuStreamWaitEvent", second, event, 0)
    program.copy_within(two, one, 800, second)
    program.copy_within(three, one, 800, program.open_stream())  # it does not wait
    program.synchronize(second)
    assert (program.read(two, "int64", 100) == values).all()
    assert (program.read(three, "int64", 100) != values).any()


OWNER = """
    import ctypes, subprocess, sys
    from helpers.cuda import Program, call
    program = Program()
    address = program.allocate(4096)
    call("cuMemsetD8Async", address, 7, 4096, 0)
    handle = ctypes.string_at(call("cuIpcGetMemHandle", address).getPtr(), 64)
    pipe = subprocess.PIPE
    reader = subprocess.Popen(
        [sys.executable, "-c", sys.argv[1], handle.hex()], stdin=pipe, stdout=pipe
    )
    assert reader.stdout.readline() == b"{7}\\n"
    if sys.argv[2] == "kill":
        reader.kill()
        reader.wait()
    program.free(address)
"""
READER = """
import ctypes, sys
from cuda.bindings import driver
from helpers.cuda import Program, call

program = Program()
opened = driver.CUipcMemHandle()
ctypes.memmove(opened.getPtr(), bytes.fromhex(sys.argv[1]), 64)
address = int(call("cuIpcOpenMemHandle", opened, 1))
assert int(call("cuIpcOpenMemHandle", opened, 1)) == address
print(set(program.read(address, "uint8", 4096).tolist()), flush=True)
sys.stdin.read()
"""


def test_memory_that_another_process_has_open_cannot_be_freed() -> None:
    ended = cuda.run_program(OWNER, READER, "keep")
    assert ended.returncode == -signal.SIGABRT
    assert "another process has the memory open" in ended.stderr
    assert cuda.run_program(OWNER, READER, "kill").returncode == 0


def test_a_forked_child_can_call_nothing() -> None:
    code = (
        START
        + """
    import os
    from cuda.bindings import driver
    if os.fork() == 0:
        os._exit(int(driver.cuCtxSynchronize()[0]))
    print(os.waitstatus_to_exitcode(os.wait()[1]))
    """
    )
    assert cuda.run_program(code).stdout == "3\n"
