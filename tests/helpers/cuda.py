"""CUDA for tests: a real device if the host has one, and the checking driver otherwise."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import weakref
from pathlib import Path
from typing import Any

import numpy as np

SOURCES = Path(__file__).parent.parent / "gpu" / "driver"
KINDS = ("device", "pool", "managed", "pinned", "registered", "opened")
"""The kinds of memory that the checking driver counts, in its order."""


class MissingToolError(Exception):
    """The checking driver cannot be built on this host."""


def has_real_device() -> bool:
    """Return whether the driver of this host finds a device."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    failed = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count))
    return not failed and count.value > 0


def build_driver() -> Path:
    """Return the folder of the checking driver, which is compiled if its sources have changed."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise MissingToolError("the checking driver of CUDA needs a C compiler: install cc")
    include = _find_header()
    digest = hashlib.sha256(str(include).encode())
    for source in sorted(SOURCES.glob("*.[ch]")):
        digest.update(source.read_bytes())
    folder = Path(sys.prefix) / "checking-driver" / digest.hexdigest()[:16]
    if not folder.is_dir():
        folder.parent.mkdir(exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent))
        for name, sources in {
            "libcuda.so.1": ("devices.c", "memory.c", "streams.c", "unsupported.c"),
            "libnvidia-ml.so.1": ("nvml.c",),
        }.items():
            subprocess.run(
                [
                    *(compiler, "-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-Wall", "-Wextra"),
                    *("-Werror", "-Wno-unused-parameter", f"-I{include}", f"-Wl,-soname,{name}"),
                    *("-o", scratch / name, *(SOURCES / each for each in sources)),
                    *("-lpthread", "-ldl"),
                ],
                check=True,
            )
        try:
            scratch.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(scratch)
    return folder


def _find_header() -> Path:
    """Return the folder of ``cuda.h`` of CUDA 12, whose names the driver defines."""
    folders = [Path(os.environ["CUDA_INCLUDE"])] if "CUDA_INCLUDE" in os.environ else []
    if (spec := importlib.util.find_spec("nvidia")) is not None:
        roots = spec.submodule_search_locations or ()
        folders += [Path(root) / "cuda_runtime" / "include" for root in roots]
    for folder in folders:
        if (folder / "cuda.h").is_file():
            return folder
    raise MissingToolError(
        "the checking driver of CUDA needs cuda.h: pip install nvidia-cuda-runtime-cu12, or let "
        "CUDA_INCLUDE name its folder"
    )


def load_checking_driver() -> None:
    """Make the checking driver that of this process, and of those that it starts."""
    folder = build_driver()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
    os.environ["LD_LIBRARY_PATH"] = f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"


def is_checking() -> bool:
    """Return whether this process uses the checking driver."""
    return hasattr(ctypes.CDLL("libcuda.so.1"), "checking_driver_count")


def count_live() -> dict[str, int]:
    """Return how much of each kind of memory this process has, by the checking driver."""
    library = ctypes.CDLL("libcuda.so.1")
    library.checking_driver_count.restype = ctypes.c_long
    found = {kind: library.checking_driver_count(number) for number, kind in enumerate(KINDS)}
    for name in ("streams", "events"):
        function = getattr(library, f"checking_driver_{name}")
        function.restype = ctypes.c_long
        found[name] = function()
    return found


def count_copies() -> int:
    """Return the number of copies of this process so far, by the checking driver."""
    function = ctypes.CDLL("libcuda.so.1").checking_driver_copies
    function.restype = ctypes.c_long
    return function()


def call(function: str, *args: Any) -> Any:
    """Call a function of the driver, and return its result."""
    driver: Any = importlib.import_module("cuda.bindings.driver")
    error, *results = getattr(driver, function)(*args)
    assert not error, f"{function}: {error!r}"
    return results[0] if results else None


class Program:
    """Code beside splitarrow that uses a device by the driver's functions, on this thread."""

    PER_THREAD = 2
    """The per-thread default stream."""

    def __init__(self, device: int = 0) -> None:
        call("cuInit", 0)
        self.device = call("cuDeviceGet", device)
        self.context = call("cuDevicePrimaryCtxRetain", self.device)
        call("cuCtxSetCurrent", self.context)

    def open_stream(self) -> int:
        return int(call("cuStreamCreate", 1))

    def allocate(self, nbytes: int) -> int:
        return int(call("cuMemAlloc", nbytes))

    def free(self, address: int) -> None:
        call("cuMemFree", address)

    def copy_in(self, target: int, source: int, nbytes: int, stream: int) -> None:
        call("cuMemcpyHtoDAsync", target, source, nbytes, stream)

    def copy_within(self, target: int, source: int, nbytes: int, stream: int) -> None:
        call("cuMemcpyDtoDAsync", target, source, nbytes, stream)

    def occupy(self, stream: int, copies: int = 20) -> None:
        """Give a stream some work, behind which other work waits."""
        source, target = self.allocate(64), self.allocate(64)
        for _ in range(copies):
            self.copy_within(target, source, 64, stream)

    def synchronize(self, stream: int) -> None:
        call("cuStreamSynchronize", stream)

    def read(self, address: int, dtype: str, count: int) -> Any:
        found = np.empty(count, dtype)
        call("cuMemcpyDtoH", found.ctypes.data, address, found.nbytes)
        return found


class DeviceArray:
    """An array on a device with ``__cuda_array_interface__``, whose memory it owns."""

    def __init__(self, values: Any) -> None:
        program = Program()
        self.address = program.allocate(values.nbytes)
        call("cuMemcpyHtoD", self.address, values.ctypes.data, values.nbytes)
        self.__cuda_array_interface__ = {
            "shape": values.shape,
            "typestr": values.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }
        self._finalizer = weakref.finalize(self, _free, program.context, self.address)
        self._finalizer.atexit = False


def _free(context: Any, address: int) -> None:
    call("cuCtxPushCurrent", context)
    call("cuMemFree", address)
    call("cuCtxPopCurrent")


def make_environment() -> dict[str, str]:
    """Return the environment of programs that import ``helpers``."""
    path = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": ":".join(filter(None, path))}


def run_program(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, where ``helpers`` can be imported."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments],
        env=make_environment() | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def check_program(code: str, *arguments: str, **environment: str) -> str:
    """Run a program as `run_program` does, and return its output; it must not fail or warn."""
    ended = run_program(code, *arguments, **environment)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr or ended.returncode
    return ended.stdout
