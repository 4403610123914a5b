"""The processes of a simulation: daemons and clients, each on a host of its own.

A process can stop, crash, lose its power with the host, pause, and start again. All of them share
this interpreter. What the product keeps once for each process is kept once for each of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from .clock import Thread, World


class Process:
    """A simulated process."""

    by_address: ClassVar[dict[str, Process]] = {}

    def __init__(self, name: str, address: str, *, is_guest: bool = False) -> None:
        self.name = name
        self.address = address
        self.is_dead = self.is_paused = False
        self.off_since: float | None = None
        """When the host lost its power; None while it has some."""
        self.clock_jump = 0.0
        self.frozen: list[Thread] = []
        """The threads that would run if the process were not paused."""
        self.values: dict[str, Any] = {}
        """What the product keeps once for each process."""
        self.is_done = False
        self.was_paused = False
        if not is_guest:
            Process.by_address[address] = self

    @staticmethod
    def is_off(address: str) -> bool:
        """Return whether a host has no power."""
        process = Process.by_address.get(address)
        return process is not None and process.off_since is not None

    @staticmethod
    def current() -> Process:
        """Return the process whose thread runs."""
        thread = World.current.thread
        assert thread is not None
        return thread.process

    def start(self, function: Callable[[], object]) -> None:
        """Run a function on the main thread of the process."""

        def run() -> None:
            try:
                function()
            finally:
                self.kill(exits=True)

        Thread(target=run, name="main", process=self).start()

    def kill(self, *, power: bool = False, exits: bool = False) -> None:
        """End the process at once; with `power`, together with its host."""
        from .network import Network

        if self.is_dead:
            return
        self.is_dead = self.is_done = True
        if power:
            self.off_since = World.current.now
        if not exits:
            World.current.record("loses power" if power else "is killed", self.name)
        Network.current.kill(self, is_silent=power)

    def pause(self) -> None:
        """Stop the process until `resume`."""
        if not self.is_dead and not self.is_paused:
            self.is_paused = True
            World.current.record("is stopped", self.name)

    def resume(self) -> None:
        """Let the process go on."""
        if self.is_paused:
            self.is_paused = False
            World.current.record("goes on", self.name)
            frozen, self.frozen = self.frozen, []
            for thread in frozen:
                World.current.start(thread)

    def jump_clock(self, seconds: float) -> None:
        """Set the wall clock of the process forward or back."""
        self.clock_jump += seconds
        World.current.record(f"its clock jumps by {seconds:+.0f} s", self.name)


class PerProcess:
    """Stands for an object of which each process has its own."""

    def __init__(self, name: str, make: Callable[[], object]) -> None:
        object.__setattr__(self, "_name", name)
        object.__setattr__(self, "_make", make)

    def _find(self) -> Any:
        values = Process.current().values
        if self._name not in values:
            values[self._name] = self._make()
        return values[self._name]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._find(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._find(), name, value)

    def __len__(self) -> int:
        return len(self._find())

    def __contains__(self, item: object) -> bool:
        return item in self._find()

    def __iter__(self) -> Any:
        return iter(self._find())

    def __getitem__(self, key: Any) -> Any:
        return self._find()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._find()[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._find()[key]

    def __bool__(self) -> bool:
        return True
