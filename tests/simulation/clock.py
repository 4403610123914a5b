"""The clock, the threads and the event loops of a simulation.

A thread is a greenlet. It runs until it waits, and the hub then chooses the next one at random.
When no thread can run, the time moves on to the next timer. Nothing waits for the real clock.

`install` replaces the clock, the locks and the threads of Python before the product is imported.
Without a `World`, locks still work, and the time stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from random import Random
from selectors import SelectorKey
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
import anyio.to_thread
from anyio._backends import _asyncio
from anyio.lowlevel import RunVar, checkpoint
from greenlet import getcurrent, greenlet

if TYPE_CHECKING:
    from .processes import Process

FIRST_SECONDS = 1_000_000.0
"""The monotonic clock at the start, in seconds."""
EPOCH_SECONDS = 1_800_000_000.0
"""What the wall clock is ahead of the monotonic one, in seconds."""
_SWITCH_SHARE = 0.05
"""How often a thread that takes a lock lets another one run first."""
_MAX_STEPS = 400_000
_THREADS = 40


class SimulationError(Exception):
    """The simulated system broke an invariant, or cannot go on."""


class World:
    """Everything that happens in one run. It is a function of the seed."""

    current: World

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = FIRST_SECONDS
        self.steps = 0
        self.events: list[tuple[float, str, str]] = []
        """What has happened: the time, the actor, the event."""
        self._watched: list[tuple[str, Callable[[], object]]] = []
        self.ids = 0
        self.folder = "/\0"
        """The folder of the disks, which the story leaves out."""
        self.thread: Thread | None = None
        """The thread that runs; None in the hub."""
        self.after_step: Callable[[], None] | None = None
        self.hub: greenlet = getcurrent()
        """The greenlet that chooses the next thread."""
        self._ready: list[Thread] = []
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._failure: BaseException | None = None

    @staticmethod
    def find() -> World | None:
        """Return the world of the current run; None before there is one."""
        return getattr(World, "current", None)

    def next_id(self) -> int:
        """Return a new number."""
        self.ids += 1
        return self.ids

    def record(self, event: str, actor: str | None = None) -> None:
        """Add an event to the story."""
        if actor is None:
            actor = "network" if self.thread is None else self.thread.label
        for watched in self._watched[:]:
            text, function = watched
            if text in event:
                self._watched.remove(watched)
                self.call_at(self.now, function)
        self.events.append((self.now - FIRST_SECONDS, actor, event.replace(self.folder, "")))

    def watch(self, text: str, function: Callable[[], object]) -> None:
        """Call a function of the hub once an event contains a text."""
        self._watched.append((text, function))

    def call_at(self, when: float, function: Callable[[], object]) -> None:
        """Call a function of the hub at a time. It must not wait."""
        heapq.heappush(self._timers, (max(when, self.now), self.next_id(), function))

    def call_later(self, seconds: float, function: Callable[[], object]) -> None:
        """Call a function of the hub after some seconds. It must not wait."""
        self.call_at(self.now + seconds, function)

    def fail(self, error: BaseException) -> None:
        """End the run with an error."""
        if self._failure is None:
            self._failure = error

    def run(self, until: Callable[[], bool], limit: float) -> None:
        """Run all threads until a condition holds. It must hold within `limit` seconds."""
        end = self.now + limit
        while not until():
            self.steps += 1
            if self.steps > _MAX_STEPS:
                raise SimulationError(f"the run does not end: {self._describe_threads()}")
            if self._ready:
                index = 0
                if len(self._ready) > 1:
                    index = int(self.random.random() * len(self._ready))
                thread = self._ready.pop(index)
                process = thread.process
                if process.is_dead:
                    continue
                if process.is_paused:
                    process.frozen.append(thread)
                    continue
                self._switch(thread)
            elif self._timers:
                when, _, function = heapq.heappop(self._timers)
                if when > end:
                    raise SimulationError(
                        f"no progress within {limit:g} s: {self._describe_threads()}"
                    )
                self.now = when
                function()
            else:
                raise SimulationError(f"all threads wait forever: {self._describe_threads()}")
            if self._failure is not None:
                raise self._failure
            if self.after_step is not None:
                self.after_step()

    def _describe_threads(self) -> str:
        threads = [thread for thread in Thread.all_threads if not thread.is_done]
        return ", ".join(f"{thread.label} ({thread.waits_for})" for thread in threads[:_THREADS])

    def _switch(self, thread: Thread) -> None:
        self.thread = thread
        try:
            thread.switch()
        finally:
            self.thread = None

    # What a thread calls to wait

    def block(self, seconds: float | None = None, what: str = "") -> bool:
        """Wait until another thread wakes this one; return whether it did in time."""
        thread, hub = self.thread, self.hub
        if thread is None:
            raise SimulationError(f"the hub would wait for {what or 'something'}")
        thread.is_blocked, thread.is_woken, thread.waits_for = True, False, what
        if seconds is not None and seconds < math.inf:
            thread.turn += 1
            turn = thread.turn
            self.call_later(seconds, lambda: self._expire(thread, turn))
        # What Python keeps for each thread of the system.
        loop, hooks = asyncio._get_running_loop(), sys.get_asyncgen_hooks()
        task = None if loop is None else asyncio.current_task(loop)
        if loop is not None:
            if task is not None:
                asyncio.tasks._leave_task(loop, task)
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(None, None)
        hub.switch()
        if loop is not None:
            asyncio._set_running_loop(loop)
            sys.set_asyncgen_hooks(*hooks)
            if task is not None:
                asyncio.tasks._enter_task(loop, task)
        thread.turn += 1
        return thread.is_woken

    def _expire(self, thread: Thread, turn: int) -> None:
        if thread.turn == turn and thread.is_blocked:
            thread.is_blocked = False
            self._ready.append(thread)

    def wake(self, thread: Thread) -> None:
        """Let a thread that waits go on."""
        if thread.is_blocked:
            thread.is_blocked, thread.is_woken = False, True
            self._ready.append(thread)

    def start(self, thread: Thread) -> None:
        """Let a new thread run, or one that was frozen."""
        self._ready.append(thread)

    def sleep(self, seconds: float) -> None:
        """Let a thread wait."""
        self.block(max(seconds, 0.0), "sleep")

    def maybe_switch(self) -> None:
        """Let another thread run now and then."""
        if self.thread is not None and self.random.random() < _SWITCH_SHARE:
            self.block(0.0, "its turn")


class Thread:
    """A thread of a simulated process, with the interface of `threading.Thread`."""

    all_threads: ClassVar[list[Thread]] = []

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
        process: Process | None = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, tuple(args), kwargs or {}
        self.name = name or "thread"
        self.daemon = bool(daemon)
        self._process = process
        self._greenlet: greenlet | None = None
        self._joining: list[Thread] = []
        self.is_blocked = self.is_woken = self.is_done = False
        self.turn = 0
        self.waits_for = "start"
        self.ident: int | None = None
        world = World.find()
        self._number = 0 if world is None else world.next_id()

    def __hash__(self) -> int:
        return self._number  # the order of a set of threads must not depend on their addresses

    @property
    def process(self) -> Process:
        """The process that the thread belongs to."""
        assert self._process is not None
        return self._process

    @property
    def label(self) -> str:
        """The process and the thread."""
        return f"{self.process.name}/{self.name}"

    def start(self) -> None:
        """Start the thread in the process of the thread that calls this."""
        world = World.current
        if self._process is None:
            assert world.thread is not None
            self._process = world.thread.process
        self._greenlet = greenlet(self._run, world.hub)
        Thread.all_threads.append(self)
        self.ident = len(Thread.all_threads)
        world.start(self)

    def switch(self) -> None:
        """Run the thread until it waits."""
        assert self._greenlet is not None
        self._greenlet.switch()

    def run(self) -> None:
        """Call the target."""
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def _run(self) -> None:
        world = World.current
        try:
            self.run()
        except Exception as error:
            world.record(f"thread ended: {type(error).__name__}: {error}")
            world.fail(error)
        finally:
            self.is_done = True
            for thread in self._joining:  # each removes itself
                world.wake(thread)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end of the thread."""
        world = World.current
        end = math.inf if timeout is None else world.now + timeout
        while not self.is_done and world.now < end and self._greenlet is not None:
            thread = world.thread
            assert thread is not None
            self._joining.append(thread)
            world.block(None if timeout is None else end - world.now, f"the end of {self.name}")
            self._joining.remove(thread)

    def is_alive(self) -> bool:
        """Return whether the thread has not ended."""
        return self._greenlet is not None and not self.is_done


class Timer(Thread):
    """A thread that calls a function after a while."""

    def __init__(
        self,
        interval: float,
        function: Callable[..., object],
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(target=function, args=args or (), kwargs=kwargs, name="timer")
        self._interval = interval
        self._is_cancelled = Event()

    def run(self) -> None:
        if not self._is_cancelled.wait(self._interval):
            super().run()

    def cancel(self) -> None:
        """Do not call the function any more."""
        self._is_cancelled.set()


class Lock:
    """A lock, with the interface of `threading.Lock`. A reentrant one counts."""

    is_reentrant = False

    def __init__(self) -> None:
        self._owner: object = None
        self._count = 0
        self._waiting: deque[Thread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock."""
        world = World.find()
        me: object = "main" if world is None or world.thread is None else world.thread
        if self._owner is not None and not (self.is_reentrant and self._owner is me):
            if not blocking:
                return False
            assert world is not None
            end = math.inf if timeout < 0 else world.now + timeout
            while self._owner is not None and not self._is_orphaned():
                if world.now >= end:
                    return False
                thread = world.thread
                if thread is None:
                    raise SimulationError(f"the hub would wait for a lock of {self._owner}")
                self._waiting.append(thread)
                world.block(None if timeout < 0 else end - world.now, "a lock")
                if thread in self._waiting:
                    self._waiting.remove(thread)
            if self._owner is not None:
                self._count = 0
        elif self._owner is None and world is not None and world.thread is not None:
            world.maybe_switch()
            if self._owner is not None:
                return self.acquire(blocking, timeout)
        self._owner, self._count = me, self._count + 1
        return True

    def release(self) -> None:
        """Release the lock."""
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            if self._waiting:
                World.current.wake(self._waiting.popleft())

    def _is_orphaned(self) -> bool:
        """Return whether a process has died that had a lock of the module it shares with others."""
        return isinstance(self._owner, Thread) and self._owner.process.is_dead

    def locked(self) -> bool:
        """Return whether somebody has the lock."""
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self.__init__()

    # `Condition` uses these of a reentrant lock.

    def _release_save(self) -> tuple[object, int]:
        state = self._owner, self._count
        self._count = 1
        self.release()
        return state

    def _acquire_restore(self, state: tuple[object, int]) -> None:
        Lock.acquire(self)
        self._owner, self._count = state


class RLock(Lock):
    """A lock that its thread may take again."""

    is_reentrant = True


class Condition:
    """A condition variable, with the interface of `threading.Condition`."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = RLock() if lock is None else lock
        self.acquire, self.release = self._lock.acquire, self._lock.release
        self._waiting: list[Thread] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification; return whether it came in time."""
        world = World.current
        thread = world.thread
        if thread is None:
            raise SimulationError("the hub would wait for a condition")
        self._waiting.append(thread)
        state = self._lock._release_save()
        try:
            # Other wakes of the thread are not possible: it waits for nothing else.
            woken = world.block(timeout, "a condition")
        finally:
            self._lock._acquire_restore(state)
            if thread in self._waiting:
                self._waiting.remove(thread)
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until a predicate holds, and return its value."""
        world = World.current
        end = math.inf if timeout is None else world.now + timeout
        while not (result := predicate()) and world.now < end:
            self.wait(None if timeout is None else end - world.now)
        return result

    def notify(self, n: int = 1) -> None:
        """Wake some threads."""
        for thread in self._waiting[:n]:
            self._waiting.remove(thread)
            World.current.wake(thread)

    def notify_all(self) -> None:
        """Wake all threads."""
        self.notify(len(self._waiting))


class Event:
    """An event, with the interface of `threading.Event`."""

    def __init__(self) -> None:
        self._changed = Condition(Lock())
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether the event has happened."""
        return self._is_set

    def set(self) -> None:
        """Let it happen."""
        self._is_set = True
        self._changed.notify_all()

    def clear(self) -> None:
        """Let it not have happened."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_set, timeout)
        return self._is_set


class Selector:
    """What the event loop of a simulated process waits with."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._keys: dict[int, Any] = {}
        self._wanted: dict[int, int] = {}
        self._is_woken = False
        self._thread: Thread | None = None

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if fd in self._keys:
            raise KeyError(f"{fd} is already registered")
        key = self._keys[fd] = SelectorKey(fileobj, fd, events, data)
        self._wanted[fd] = events
        return key

    def unregister(self, fileobj: Any) -> Any:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        del self._wanted[fd]
        return self._keys.pop(fd)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> Any:
        self.unregister(fileobj)
        return self.register(fileobj, events, data)

    def get_map(self) -> Any:
        return self._keys

    def get_key(self, fileobj: Any) -> Any:
        return self._keys[fileobj if isinstance(fileobj, int) else fileobj.fileno()]

    def close(self) -> None:
        self._keys.clear()

    def wake(self) -> None:
        """End the wait of the loop, from another thread."""
        self._is_woken = True
        if self._thread is not None:
            self._world.wake(self._thread)

    def select(self, timeout: float | None = None) -> list[tuple[Any, int]]:
        from .network import wait_for_descriptors

        self._thread = self._world.thread
        found = wait_for_descriptors(self._wanted, timeout, lambda: self._is_woken)
        self._is_woken = False
        return [(self._keys[fd], events) for fd, events in found]


class _Task(asyncio.Task[Any]):
    """A task whose position in a set does not depend on its address."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._number = World.current.next_id()
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._number


def _fail(_loop: object, context: dict[str, Any]) -> None:
    """Let a run fail in which a callback raises."""
    World.current.fail(context.get("exception") or SimulationError(context["message"]))


class EventLoop(asyncio.SelectorEventLoop):
    """The event loop of a simulated process."""

    def __init__(self) -> None:
        self._waiter = Selector(World.current)
        super().__init__(self._waiter)  # pyright: ignore[reportArgumentType]
        self.set_exception_handler(_fail)
        self.set_task_factory(lambda loop, coro, **options: _Task(coro, loop=loop, **options))

    def _make_self_pipe(self) -> None:
        self._ssock = self._csock = None

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        self._waiter.wake()

    def time(self) -> float:
        return World.current.now


_limiters: RunVar[Any] = RunVar("_limiters")


async def run_in_thread(
    function: Callable[..., Any],
    *args: Any,
    abandon_on_cancel: bool = False,
    cancellable: bool | None = None,
    limiter: Any = None,
) -> Any:
    """Run a function on a simulated thread; see `anyio.to_thread.run_sync`."""
    await checkpoint()
    loop = asyncio.get_running_loop()
    if limiter is None:
        limiter = _limiters.get(None)
        if limiter is None:
            limiter = anyio.CapacityLimiter(40)
            _limiters.set(limiter)
    async with limiter:
        with anyio.CancelScope(shield=not abandon_on_cancel):
            result: asyncio.Future[Any] = loop.create_future()
            context = copy_context()

            def finish(value: Any, error: BaseException | None) -> None:
                if result.done():
                    return
                if error is None:
                    result.set_result(value)
                else:
                    result.set_exception(error)

            def run() -> None:
                value = error = None
                try:
                    value = context.run(function, *args)
                except BaseException as raised:
                    error = raised
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(finish, value, error)

            Thread(target=run, name="worker").start()
            return await result


def _world_time() -> float:
    world = World.find()
    return FIRST_SECONDS if world is None else world.now


def _wall_time() -> float:
    world = World.find()
    if world is None:
        return FIRST_SECONDS + EPOCH_SECONDS
    jump = 0.0 if world.thread is None else world.thread.process.clock_jump
    return world.now + EPOCH_SECONDS + jump


def _sleep(seconds: float) -> None:
    world = World.find()
    if world is not None:
        world.sleep(seconds)


def current_thread() -> Any:
    """Return the simulated thread that runs, or the real main thread."""
    world = World.find()
    return threading.main_thread() if world is None or world.thread is None else world.thread


def install() -> None:
    """Replace the clock, the locks and the threads of Python. Call this before other imports."""
    time.monotonic = time.perf_counter = time.thread_time = time.process_time = _world_time
    time.time = _wall_time
    time.monotonic_ns = lambda: int(_world_time() * 1e9)
    time.time_ns = lambda: int(_wall_time() * 1e9)
    time.sleep = _sleep
    # These two modules were imported before, and have taken the clock from there.
    threading._time = queue.time = _world_time  # pyright: ignore[reportAttributeAccessIssue]
    threading.Lock = Lock  # pyright: ignore[reportAttributeAccessIssue]
    threading.RLock = RLock  # pyright: ignore[reportAttributeAccessIssue]
    threading.Condition = Condition  # pyright: ignore[reportAttributeAccessIssue]
    threading.Event = Event  # pyright: ignore[reportAttributeAccessIssue]
    threading.Thread = Thread  # pyright: ignore[reportAttributeAccessIssue]
    threading.Timer = Timer  # pyright: ignore[reportAttributeAccessIssue]
    threading.current_thread = current_thread
    queue.SimpleQueue = queue._PySimpleQueue  # pyright: ignore
    anyio.to_thread.run_sync = run_in_thread
    first = _asyncio.CancelScope.__init__

    class Scope(_asyncio.CancelScope):
        __slots__ = ("_number",)

        def __init__(self, *, deadline: float = math.inf, shield: bool = False) -> None:
            world = World.find()
            self._number = 0 if world is None else world.next_id()
            first(self, deadline, shield)

        def __hash__(self) -> int:
            return self._number

    _asyncio.CancelScope = Scope  # pyright: ignore[reportAttributeAccessIssue]
