"""Runs plans: a run, the fork for each of them, the shrinking of one that fails."""

from __future__ import annotations

import argparse
import faulthandler
import fcntl
import hashlib
import os
import pickle
import shutil
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from . import disk, setup
from .actors import Actor, ActorPlan
from .clock import FIRST_SECONDS, SimulationError, Thread, World
from .cluster import Cluster, Host
from .network import Network
from .processes import Process
from .scenarios import Fault, Plan, draw_plan, list_smaller, load_plan, save_plan

if TYPE_CHECKING:
    from splitarrow.server.daemon import Daemon

_FOLDER = Path("/dev/shm" if Path("/dev/shm").is_dir() else "/tmp")
_LIMIT_SECONDS = 1500.0
_IDLE_SECONDS = 80.0
_LEAST_SECONDS = 4.0
"""The time in which faults can begin, at least."""
_DRAIN_SECONDS = 60.0
_MAX_SHRINKS = 120
_REAL_SECONDS = 60
"""The time after which a run has taken a real lock, or does not end."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a run was."""

    seed: int
    digest: str
    """Identifies the trace."""
    seconds: float
    """The time that passed in the simulation."""
    steps: int
    error: str | None = None
    """Why it failed; None if it did not."""
    story: tuple[tuple[float, str, str], ...] = ()
    """Time, actor, event."""
    scenario: str = ""


class Run:
    """One run of a plan, in a process of its own."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan = plan
        self.world = World.current = World(plan.seed)
        self.network = Network.current = Network(self.world)
        for name, value in plan.network.items():
            setattr(self.network, name, value)
        self.world.folder = str(folder)
        disk.reset()
        Process.by_address.clear()
        Thread.all_threads.clear()
        self.cluster = Cluster(list(plan.daemons), folder, has_tokens=plan.has_tokens)
        self.network.on_break = self.cluster.note_fault
        for actor in plan.actors:
            if actor.kind in ("upload", "publish"):
                self.cluster.owners[actor.dataset] = actor.host
            if actor.kind == "publish":
                self.cluster.published.add(actor.dataset)
            if actor.options.get("replicas"):
                self.cluster.replicated.add(actor.dataset)
        self.actors = [Actor(self.cluster, n, actor) for n, actor in enumerate(plan.actors)]

    def run(self) -> None:
        """Run the plan; raise `SimulationError` if something is not as it must be."""
        world, cluster = self.world, self.cluster
        world.after_step = cluster.check_step
        for host in cluster.hosts:
            host.start()
        if any(host.plan.is_relay for host in cluster.hosts):
            cluster.note_fault()  # a relay may start before its upstream
        break_share, self.network.break_share = self.network.break_share, 0.0
        self._wait_ready()
        early = self._start_writers() if self.plan.writes_first else []
        self._watch_counters()
        self.network.break_share = break_share
        cluster.has_failing_disks = self.plan.failing_share > 0
        for host in cluster.hosts:
            host.disk.failing_share = self.plan.failing_share
        if self.plan.failing_share or self.network.break_share:
            cluster.faults += 1
        self.network.large_segments = 0
        for fault in self.plan.faults:
            self._schedule(fault)
        for actor in self.actors:
            if actor not in early:
                actor.start()
        last = max((fault.at + fault.seconds for fault in self.plan.faults), default=0.0)
        end = world.now + max(last, _LEAST_SECONDS) + 0.1
        self.is_over = False
        world.call_at(end, self._end_faults)
        world.run(lambda: self.is_over, _LIMIT_SECONDS)
        world.run(lambda: all(each.process.is_done for each in self.actors), _LIMIT_SECONDS)
        self._wait_idle()
        checker = Actor(cluster, 99, ActorPlan("check", "alice-x", 0, 1, 0))
        checker.start()
        world.run(lambda: checker.process.is_done, _LIMIT_SECONDS)
        self._wait_idle()
        cluster.check_idle()
        self.is_done = True  # nobody starts them again
        for host in cluster.hosts:
            host.call(lambda daemon: daemon.drain())
        world.run(lambda: all(host.has_stopped for host in cluster.hosts), _DRAIN_SECONDS)
        for host in cluster.hosts:
            if not host.plan.is_relay and (count := cluster.find_open_sockets(host)):
                raise SimulationError(f"{host.name} left {count} connections open")

    def _start_writers(self) -> list[Actor]:
        """Start the writers, and wait until each dataset exists; return them."""
        writers = [actor for actor in self.actors if actor.plan.kind in ("upload", "publish")]
        for actor in writers:
            actor.start()
        names = {actor.plan.dataset for actor in writers}
        self.world.run(
            lambda: (
                all(self.cluster.history(name).acknowledged for name in names)
                or all(actor.process.is_done for actor in writers)
            ),
            _LIMIT_SECONDS,
        )
        return writers

    def _watch_counters(self) -> None:
        self.cluster.check_counters()
        if not self.is_done:
            self.world.call_later(0.25, self._watch_counters)

    def _wait_ready(self) -> None:
        """Wait until the daemons listen."""
        hosts = self.cluster.hosts
        self.world.run(
            lambda: all((host.address, 8815) in self.network.listening for host in hosts),
            _LIMIT_SECONDS,
        )

    def _wait_idle(self) -> None:
        """Wait until all daemons run and hold nothing, but not too long."""
        end = self.world.now + _IDLE_SECONDS
        self.is_over = False

        def look() -> None:
            self.is_over = self.cluster.is_idle() or self.world.now >= end
            if not self.is_over:
                self.world.call_later(0.5, look)

        look()
        self.world.run(lambda: self.is_over, _LIMIT_SECONDS)

    def _schedule(self, fault: Fault) -> None:
        world, cluster = self.world, self.cluster
        host = cluster.hosts[fault.target % len(cluster.hosts)]
        actor = self.actors[fault.target % len(self.actors)]

        def begin() -> None:
            if self.has_no_faults:
                return
            if fault.kind == "drain":  # the only one that may not harm what goes on
                cluster.note_drain()
                host.call(lambda daemon: daemon.drain())
                world.record("is asked to end", host.name)
                return
            cluster.note_fault()
            undo: Callable[[], object] | None = None
            match fault.kind:
                case "break":
                    self.network.break_one()
                case "cut":
                    self.network.cut_link(host.address, actor.process.address)
                    undo = self.network.heal
                case "kill" | "power":
                    host.kill(power=fault.kind == "power")
                    self._settle(host)
                    undo = host.start
                case "pause":
                    if host.process is not None and host.is_running:
                        host.process.pause()
                        undo = host.process.resume
                case "full":
                    host.disk.is_full = True
                    world.record("its disk is full", host.name)
                    undo = partial(setattr, host.disk, "is_full", False)
                case "jump":
                    if host.process is not None:
                        host.process.jump_clock(fault.amount)
                case "kill client":
                    if not actor.process.is_done:
                        actor.process.kill()
                case "pause client":
                    actor.process.pause()
                    actor.process.was_paused = True
                    undo = actor.process.resume
                case "cancel":
                    self._cancel_soon(host, 500)
                case _:
                    pass
            if undo is not None:
                cluster.faults += 1
                world.call_later(fault.seconds, partial(end, undo))

        def end(undo: Callable[[], object]) -> None:
            cluster.faults -= 1
            cluster.note_fault()
            undo()

        if fault.event is not None:
            self._watch(fault.event, fault.occurrence, begin)
        elif fault.segment is None:
            world.call_later(fault.at, begin)
        else:
            self.network.triggers[fault.segment].append(begin)

    def _watch(self, event: str, occurrence: int, begin: Callable[[], None]) -> None:
        """Begin a fault at one of the events with a text."""

        def count() -> None:
            if occurrence > 1:
                self._watch(event, occurrence - 1, begin)
            else:
                begin()

        self.world.watch(event, count)

    def _cancel_soon(self, host: Host, attempts: int) -> None:
        """Cancel the streams of a daemon once it has sent some of them."""
        daemon = host.daemon
        if daemon is not None and host.is_running and any(each.nbytes for each in daemon.streams):
            self.cluster.note_fault()
            self.world.record("an operator cancels all streams", host.name)
            host.call(_cancel_all)
        elif attempts and not self.is_over:
            self.world.call_later(0.01, lambda: self._cancel_soon(host, attempts - 1))

    def _settle(self, host: object) -> None:
        for name, owner in self.cluster.owners.items():
            is_here = self.cluster.hosts[owner % len(self.cluster.hosts)] is host
            if is_here and name not in self.cluster.replicated:
                self.cluster.history(name).settle()

    def _end_faults(self) -> None:
        """Let everything work again."""
        self.world.record("all faults are over", "simulation")
        self.has_no_faults = True
        self.network.heal()
        if self.plan.failing_share or self.network.break_share:
            self.cluster.faults -= 1
            self.cluster.note_fault()
        self.network.break_share = 0.0
        for host in self.cluster.hosts:
            host.disk.is_full, host.disk.failing_share = False, 0.0
            if host.process is not None:
                host.process.resume()
        for actor in self.actors:
            actor.process.resume()
        self._keep_running()
        self.is_over = True

    def _keep_running(self) -> None:
        """Start the daemons again that have been drained, as a service manager does."""
        if self.is_done:
            return
        for host in self.cluster.hosts:
            host.start()
        self.world.call_later(1.0, self._keep_running)

    is_done = is_over = has_no_faults = False


def _cancel_all(daemon: Daemon) -> None:
    for stream in daemon.streams:
        stream.cancel()


def run_plan(plan: Plan) -> Result:
    """Run a plan in this process."""
    # The name must not depend on the process: it is part of what the run is a function of.
    folder = _FOLDER / "splitarrow-simulation" / f"{plan.seed:020d}"
    folder.parent.mkdir(exist_ok=True)
    path = folder.with_suffix(".lock")
    with _lock(path):
        try:
            return _run_plan(plan, folder)
        finally:
            path.unlink()


def _lock(path: Path) -> TextIO:
    """Lock a file, and return it. Whoever closes it removes it before."""
    while True:
        file = open(path, "w")  # noqa: SIM115  # the caller closes it
        fcntl.lockf(file, fcntl.LOCK_EX)
        # The file may have been removed meanwhile; then another process may hold a new one.
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                return file
        file.close()


def _run_plan(plan: Plan, folder: Path) -> Result:
    shutil.rmtree(folder, ignore_errors=True)
    error: str | None = None
    run = Run(plan, folder)
    try:
        run.run()
    except SimulationError as failure:
        error = str(failure)
    except BaseException as failure:
        error = "".join(traceback.format_exception(failure))
    finally:
        run.is_done = True
    events = tuple(run.world.events)
    digest = hashlib.sha256(repr((events, run.world.steps)).encode()).hexdigest()[:16]
    shutil.rmtree(folder, ignore_errors=True)
    seconds = run.world.now - FIRST_SECONDS
    return Result(plan.seed, digest, seconds, run.world.steps, error, events, plan.scenario)


def run_apart(plan: Plan, *, tells: bool = False) -> Result:
    """Run a plan in a fork of this process, so that runs share nothing.

    With `tells`, the result of a run that succeeds has its story as well.
    """
    return end_apart(plan, *begin_apart(plan, tells=tells))


def begin_apart(plan: Plan, *, tells: bool = False) -> tuple[int, int]:
    """Begin to run a plan in a fork; return its number, and where it writes the result."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    faulthandler.dump_traceback_later(_REAL_SECONDS, exit=True)
    data = b""
    try:
        result = run_plan(plan)
        if result.error is None and not tells:
            result = replace(result, story=())
        data = pickle.dumps(result)
    finally:
        with open(writing, "wb") as pipe:
            pipe.write(data)
        os._exit(0)


def end_apart(plan: Plan, child: int, reading: int) -> Result:
    """Wait for a run in a fork, and return its result."""
    with open(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    if not data:
        text = "the process of the run has died; its standard error has the reason"
        return Result(plan.seed, "", 0.0, 0, text, (), plan.scenario)
    return pickle.loads(data)


def shrink(plan: Plan, result: Result) -> tuple[Plan, Result]:
    """Return a smaller plan that fails in the same way, as far as one is found."""
    kind = _find_kind(result)
    attempts = 0
    while attempts < _MAX_SHRINKS:
        for smaller in list_smaller(plan):
            attempts += 1
            found = run_apart(smaller)
            if found.error is not None and _find_kind(found) == kind:
                plan, result = smaller, found
                break
        else:
            break
    return plan, result


def _find_kind(result: Result) -> str:
    """Return the text of an error without its numbers."""
    lines = (result.error or "").strip().splitlines()
    text = lines[-1] if len(lines) > 1 else "".join(lines)
    return "".join(character for character in text if not character.isdigit())[:60]


def print_story(plan: Plan, result: Result) -> None:
    """Print what happened in a run."""
    print(f"seed {plan.seed}, scenario {plan.scenario}")
    for daemon in plan.daemons:
        print(f"  daemon {daemon.settings} {'relay' if daemon.is_relay else ''}")
    for actor in plan.actors:
        print(f"  client {actor.kind} {actor.dataset}, {actor.steps} steps, host {actor.host}")
    for fault in plan.faults:
        print(f"  fault {fault.kind} at {fault.at:.3f} s for {fault.seconds:.3f} s")
    print(f"  network {plan.network}, failing share {plan.failing_share}")
    for seconds, actor, event in result.story:
        print(f"{seconds:11.4f}  {actor:<24}  {event}")
    print(f"error: {result.error}")


def main(arguments: list[str]) -> int:
    """Run seeds: one that is printed as a story, or a range."""
    parser = argparse.ArgumentParser(prog="python -m simulation")
    parser.add_argument(
        "first", type=int, nargs="?", default=0, metavar="SEED", help="the seed, or the first one"
    )
    parser.add_argument("last", type=int, nargs="?", help="the seed after the last one")
    parser.add_argument("--raw", action="store_true", help="do not shrink a run that fails")
    parser.add_argument("--stop", action="store_true", help="stop after the first failure")
    parser.add_argument("--minutes", type=float, help="end after so many minutes")
    parser.add_argument("--processes", type=int, default=1, help="the runs at a time")
    parser.add_argument("--traces", action="store_true", help="print what identifies each run")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the plan of a run")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="run a plan that was saved")
    parser.add_argument("--plant", metavar="NAME", help="plant a defect of planted.toml")
    options = parser.parse_args(arguments)
    setup.prepare()
    if options.plan or options.last is None:
        plan = load_plan(options.plan) if options.plan else draw_plan(options.first)
        result = run_apart(plan, tells=True)
        if result.error is not None and not options.raw:
            plan, result = shrink(plan, result)
        print_story(plan, result)
        print(f"trace {result.digest}")
        if options.save:
            save_plan(plan, options.save)
        return result.error is not None
    begin = os.times().elapsed
    failed = count = steps = 0
    simulated = 0.0
    for result in run_seeds(range(options.first, options.last), options.processes):
        count, steps, simulated = count + 1, steps + result.steps, simulated + result.seconds
        if options.traces:
            print(f"{result.seed} {result.digest}")
        if result.error is not None:
            failed += 1
            lines = result.error.strip().splitlines()
            print(f"seed {result.seed} ({result.scenario}): {lines[-1][:300]}", flush=True)
            if options.stop:
                break
        if options.minutes is not None and os.times().elapsed - begin > 60 * options.minutes:
            break
    seconds = os.times().elapsed - begin
    print(
        f"{count} seeds in {seconds:.0f} s, {failed} failed; {60 * count / seconds:,.0f} seeds "
        f"per minute, {simulated / 3600 / seconds:.3f} simulated hours per second"
    )
    if failed:
        print("make simulate SEED=n tells the story of a seed")
    return failed > 0


def run_seeds(seeds: Iterable[int], processes: int) -> Iterator[Result]:
    """Run seeds, some at a time, and yield the results in the order of the seeds."""
    waiting: deque[tuple[Plan, int, int]] = deque()
    for seed in seeds:
        plan = draw_plan(seed)
        waiting.append((plan, *begin_apart(plan)))
        if len(waiting) >= processes:
            yield end_apart(*waiting.popleft())
    while waiting:
        yield end_apart(*waiting.popleft())
