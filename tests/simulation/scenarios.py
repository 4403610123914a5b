"""Scenarios: each draws a cluster, its clients and what goes wrong, from a seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from .actors import ActorPlan
from .cluster import DaemonPlan

_LEAST_RATE = 200_000
"""The slowest link, in bytes per second: the stall timeout applies to a message of DoGet."""
_WINDOW_SECONDS = 6.0
"""The time in which faults begin."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, when, where, and for how long."""

    kind: str
    at: float
    target: int
    seconds: float = 0.0
    amount: float = 0.0
    segment: int | None = None
    """The large segment at which it begins, in place of a time."""
    event: str | None = None
    """The text of an event at which it begins, in place of a time."""
    occurrence: int = 1
    """Which of these events it is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A run, before it begins."""

    seed: int
    scenario: str
    daemons: tuple[DaemonPlan, ...]
    actors: tuple[ActorPlan, ...]
    faults: tuple[Fault, ...]
    network: dict[str, Any] = field(default_factory=dict[str, Any])
    has_tokens: bool = False
    writes_first: bool = False
    """Whether readers and faults wait until each dataset exists."""
    failing_share: float = 0.0
    """How often a call that writes to a disk fails."""


def _draw_network(random: Random) -> dict[str, Any]:
    seconds = random.choice((0.001, 0.01, 0.05))
    jitter = seconds * random.choice((0.0, 1.0))
    buffer_bytes = random.choice((4 << 10, 16 << 10, 64 << 10))
    return {
        "seconds": seconds,
        "jitter": jitter,
        "buffer_bytes": max(buffer_bytes, int(2 * (seconds + jitter) * _LEAST_RATE)),
        "split_share": random.choice((0.0, 0.3)),
        "mangle_share": random.choice((0.0, 0.3)),
        "break_share": random.choice((0.0, 0.001, 0.01)),
    }


_FAULTS = (
    *("break", "break", "break", "cut", "kill", "kill", "power", "power", "pause", "full"),
    *("drain", "jump", "kill client", "kill client", "pause client"),
    *("cancel", "cancel", "cancel"),
)


_ANSWERS = ("uploaded job", "dropped alice", "published job", "wrote all")
"""Events of clients that have an answer."""
_EVENTS = ("dataset uploaded", "dataset dropped", "dataset published", *_ANSWERS)
"""These, and events of daemons before they answer."""


def _draw_fault(random: Random) -> Fault:
    begins = random.choice(("time", "segment", "segment", "event"))
    return Fault(
        random.choice(_FAULTS),
        at=random.choice((0.3, 1.0, _WINDOW_SECONDS)) * random.random(),
        target=random.randrange(8),
        seconds=random.choice((0.05, 1.0, 4.0, 30.0)) * random.random(),
        amount=random.choice((-3600.0, 120.0, 7200.0)),
        segment=random.randrange(1, random.choice((30, 200))) if begins == "segment" else None,
        event=random.choice(_EVENTS) if begins == "event" else None,
        occurrence=random.randrange(1, 4),
    )


def _draw_faults(random: Random, most: int) -> tuple[Fault, ...]:
    faults = [_draw_fault(random) for _ in range(random.randrange(most + 1))]
    if random.random() < 0.3:  # what was acknowledged must survive
        answer, fault = random.choice(_ANSWERS), _draw_fault(random)
        faults[:1] = [replace(fault, kind="power", event=answer, segment=None)]
    return tuple(faults)


def _draw_settings(random: Random) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if random.random() < 0.3:
        settings["compression"] = random.choice(("none", "lz4", "auto"))
    if random.random() < 0.2:
        settings["stream_memory"] = 64 << 10
    if random.random() < 0.2:
        settings["batch_rows"] = random.choice((64, 1000))
    if random.random() < 0.4:
        settings["keep_versions"] = random.choice((1, 2))
        settings["poll_seconds"] = 0.5
    if random.random() < 0.2:
        settings["stall_seconds"] = random.choice((5.0, 30.0))
    return settings


def _actor(
    random: Random, kind: str, dataset: str, host: int, steps: int, **options: Any
) -> ActorPlan:
    if kind in ("read", "hold") and random.random() < 0.4:
        options["local"] = True
    return ActorPlan(kind, dataset, host, steps, random.getrandbits(32), options)


def _draw_relay(random: Random) -> DaemonPlan:
    return DaemonPlan({"poll_seconds": random.choice((0.2, 1.0))}, is_relay=True)


def uploads(random: Random, seed: int) -> Plan:
    """One daemon: uploads are replaced and dropped while others read them."""
    writers = random.randrange(1, 3)
    names = [f"alice-{number}" for number in range(writers)]
    actors = [_actor(random, "upload", name, 0, random.randrange(1, 5)) for name in names]
    actors += [
        _actor(random, "read", random.choice(names), 0, random.randrange(2, 7))
        for _ in range(random.randrange(1, 4))
    ]
    settings = _draw_settings(random)
    if random.random() < 0.1:
        settings["writable_bytes"] = 150_000
    return Plan(
        seed,
        "uploads",
        (DaemonPlan(settings),),
        tuple(actors),
        _draw_faults(random, 4),
        _draw_network(random),
        failing_share=random.choice((0.0, 0.0, 0.01)),
    )


def publications(random: Random, seed: int) -> Plan:
    """One daemon: versions are published and pruned while others read them."""
    actors = [_actor(random, "publish", "alice-p", 0, random.randrange(1, 5))]
    actors += [
        _actor(random, "read", "alice-p", 0, random.randrange(2, 7))
        for _ in range(random.randrange(1, 3))
    ]
    return Plan(
        seed,
        "publications",
        (DaemonPlan(_draw_settings(random)),),
        tuple(actors),
        _draw_faults(random, 4),
        _draw_network(random),
        failing_share=random.choice((0.0, 0.0, 0.01)),
    )


def replicas(random: Random, seed: int) -> Plan:
    """Two or three daemons share a dataset, and hold each shard once or twice."""
    count, copies = random.randrange(2, 4), random.choice((1, 2))
    actors = [_actor(random, "publish", "alice-r", 0, random.randrange(1, 5), replicas=copies)]
    actors += [
        _actor(random, "read", "alice-r", 0, random.randrange(2, 7), replicas=copies)
        for _ in range(random.randrange(1, 3))
    ]
    return Plan(
        seed,
        "replicas",
        tuple(DaemonPlan(_draw_settings(random)) for _ in range(count)),
        tuple(actors),
        _draw_faults(random, 4),
        _draw_network(random),
    )


def relays(random: Random, seed: int) -> Plan:
    """A relay caches what one or two daemons publish."""
    origins = random.choice((1, 2, 2))
    shares = origins > 1 and random.random() < 0.5
    copies = {"replicas": random.randrange(1, 3)} if shares else {}
    actors = [
        _actor(random, "publish", "alice-p", 0, random.randrange(1, 5), **copies),
        _actor(random, "read", "alice-p", origins, random.randrange(4, 12)),
    ]
    daemons = [DaemonPlan(_draw_settings(random)) for _ in range(origins)]
    return Plan(
        seed,
        "relays",
        (*daemons, _draw_relay(random)),
        tuple(actors),
        _draw_faults(random, 3),
        {**_draw_network(random), "break_share": random.choice((0.0, 0.004, 0.01))},
    )


def passages(random: Random, seed: int) -> Plan:
    """A relay passes on what is uploaded to a daemon, over connections that break."""
    return Plan(
        seed,
        "passages",
        (DaemonPlan(_draw_settings(random)), _draw_relay(random)),
        (
            _actor(random, "upload", "alice-u", 0, random.randrange(2, 7)),
            *(_actor(random, "read", "alice-u", 1, random.randrange(3, 9)) for _ in range(2)),
        ),
        _draw_faults(random, 6),
        {**_draw_network(random), "break_share": random.choice((0.01, 0.03))},
    )


def principals(random: Random, seed: int) -> Plan:
    """Two principals share a daemon, its limits, and nothing else."""
    settings = _draw_settings(random)
    if random.random() < 0.7:
        settings["max_streams_per_principal"] = random.choice((1, 2, 3))
    if random.random() < 0.5:
        settings["stream_memory"] = random.choice((64 << 10, 1 << 20))
    actors = [
        _actor(random, "upload", "alice-a", 0, random.randrange(1, 3)),
        _actor(random, "upload", "bob-b", 0, random.randrange(1, 3)),
        _actor(random, "read", "alice-a", 0, random.randrange(2, 7)),
        _actor(random, "read", "bob-b", 0, random.randrange(2, 7)),
        _actor(random, "intrude", "alice-a", 0, random.randrange(1, 5)),
        _actor(random, "hold", "bob-b", 0, random.randrange(2, 6)),
    ]
    return Plan(
        seed,
        "principals",
        (DaemonPlan(settings),),
        tuple(actors),
        _draw_faults(random, 2),
        {**_draw_network(random), "seconds": 0.005, "jitter": 0.0, "buffer_bytes": 4 << 10},
        has_tokens=True,
    )


SCENARIOS: tuple[Callable[[Random, int], Plan], ...] = (
    *(uploads, uploads, publications, publications),
    *(replicas, replicas, relays, passages, principals),
)


def draw_plan(seed: int) -> Plan:
    """Return the plan of a seed."""
    random = Random(seed)
    plan = random.choice(SCENARIOS)(random, seed)
    plan = replace(plan, writes_first=random.random() < 0.75)
    return _quieten(random, plan) if random.random() < 0.2 else plan


def _quieten(random: Random, plan: Plan) -> Plan:
    """Return a plan in which no read may fail: nothing breaks, but a daemon may drain."""
    drain = replace(_draw_fault(random), kind="drain", seconds=30.0)  # longer than reads wait
    return replace(
        plan,
        faults=(drain,) if random.random() < 0.6 else (),
        network={**plan.network, "break_share": 0.0},
        failing_share=0.0,
    )


def list_smaller(plan: Plan) -> list[Plan]:
    """Return plans with less in them, the smallest first."""
    smaller = [
        replace(plan, faults=plan.faults[:index] + plan.faults[index + 1 :])
        for index in range(len(plan.faults))
    ]
    for index, actor in enumerate(plan.actors):
        if len(plan.actors) > 1:
            rest = plan.actors[:index] + plan.actors[index + 1 :]
            smaller.append(replace(plan, actors=rest))
        if actor.steps > 1:
            fewer = replace(actor, steps=actor.steps - 1)
            actors = (*plan.actors[:index], fewer, *plan.actors[index + 1 :])
            smaller.append(replace(plan, actors=actors))
    for index, daemon in enumerate(plan.daemons):
        for name in daemon.settings:
            settings = {key: value for key, value in daemon.settings.items() if key != name}
            daemons = (
                *plan.daemons[:index],
                replace(daemon, settings=settings),
                *plan.daemons[index + 1 :],
            )
            smaller.append(replace(plan, daemons=daemons))
    if plan.failing_share:
        smaller.append(replace(plan, failing_share=0.0))
    chances = ("break_share", "mangle_share", "split_share", "jitter")
    smaller += [
        replace(plan, network={**plan.network, name: 0.0})
        for name in chances
        if plan.network.get(name)
    ]
    return smaller


def save_plan(plan: Plan, path: Path) -> None:
    """Write a plan as JSON."""
    path.write_text(json.dumps(asdict(plan), indent=1) + "\n")


def load_plan(path: Path) -> Plan:
    """Return a plan that `save_plan` has written."""
    values = json.loads(path.read_text())
    values["daemons"] = tuple(DaemonPlan(**each) for each in values["daemons"])
    values["actors"] = tuple(ActorPlan(**each) for each in values["actors"])
    values["faults"] = tuple(Fault(**each) for each in values["faults"])
    return Plan(**values)
