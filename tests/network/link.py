"""An emulated link between two network namespaces, for tests and benchmarks.

    with Link(delay_ms=100, rate_mbit=1000, loss=0.001) as link:
        with link.inside("server"):
            daemon = Daemon({"trips": path}, listen=[f"tcp://{SERVER}:8816"])
            daemon.start()
        client = link.python()
        read = client("splitarrow.open('tcp://…').read_all().num_rows")

`emulator.c` forwards the packets. The namespaces belong to its process: they end with it, and it
ends with this one, however that ends. A link therefore leaves nothing behind, and tests on several
links can run at once, all with the same addresses.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

Side = Literal["server", "client"]
Hole = Literal["none", "to server", "to client", "both"]

SERVER, CLIENT = "10.77.0.1", "10.77.0.2"
SERVER_V6, CLIENT_V6 = "fd77::1", "fd77::2"
DEAD, DEAD_V6 = "10.77.0.3", "fd77::3"
"""Addresses at which nothing answers: packets to them vanish. `getaddrinfo` puts them first."""

_SIDES: tuple[Side, Side] = ("server", "client")
_HOLES: tuple[Hole, ...] = ("none", "to server", "to client", "both")
_SOURCE = Path(__file__).with_name("emulator.c")
_CLONE_NEWNET = 0x40000000
_SYN = 0x02
_LEAST_RESPONSE, _LEAST_REQUEST = 40, 50
"""The size of a payload from which it is a message, in bytes. Nobody waits for shorter ones: the
pings, windows and acknowledged settings of HTTP/2. A client sends several of these together."""
_SETTINGS = {
    "tcp_rmem": "4096 131072 67108864",
    "tcp_wmem": "4096 16384 67108864",
    "tcp_no_metrics_save": "1",
}
"""The buffers hold 5 Gbit/s times 100 ms. No connection inherits the window of an earlier one."""


class LinkUnavailableError(Exception):
    """This machine cannot emulate a link; the message says what is missing."""


class Figures(NamedTuple):
    """What one direction has carried and dropped: packets as they are on the wire."""

    packets: int
    bytes: int
    payload: int
    """The payload of TCP, in bytes."""
    lost: int
    """Packets that the random loss took."""
    overflowed: int
    """Packets that found the queue full."""
    holed: int
    """Packets that fell into a black hole."""
    oversized: int
    """Packets that were larger than `path_mtu`."""
    forgotten: int
    """Packets of connections that the link has forgotten."""


class Stats(NamedTuple):
    """The figures of both directions."""

    to_server: Figures
    to_client: Figures


class Packet(NamedTuple):
    """A packet of TCP, or several that were under way together."""

    sent: float
    """In seconds of `time.monotonic`."""
    arrived: float
    """In seconds of `time.monotonic`; 0 for a packet that was dropped."""
    to_client: bool
    source: int
    target: int
    """The ports."""
    flags: int
    payload: int
    size: int

    @property
    def opens(self) -> bool:
        """Whether it asks for a new connection."""
        return self.flags & 0x12 == _SYN

    @property
    def is_message(self) -> bool:
        """Whether its receiver may wait for it."""
        least = _LEAST_RESPONSE if self.to_client else _LEAST_REQUEST
        return self.payload >= least or bool(self.flags & _SYN)


class Capture:
    """The packets of TCP that have passed. They are known once the capture has ended."""

    packets: list[Packet]

    def round_trips(self, begin: float = 0.0, end: float = float("inf")) -> int:
        """Count the round trips that the client waits for between two times of `time.monotonic`.

        They are the longest chain of messages in which each side sends one after the arrival of
        another. The time of processors does not count, nor do windows that are full: count what
        fits into the first packets of a connection.
        """
        packets = [p for p in self.packets if p.arrived and begin <= p.sent and p.arrived <= end]
        trips = 0
        reached = {True: 0, False: 0}  # the length of the chain that has arrived, by direction
        under_way: dict[bool, deque[tuple[float, int]]] = {True: deque(), False: deque()}
        connecting: set[int] = set()  # ports of the client that have not completed the handshake
        for packet in sorted(packets):
            for to_client, waiting in under_way.items():
                while waiting and waiting[0][0] <= packet.sent:
                    reached[to_client] = max(reached[to_client], waiting.popleft()[1])
            length = reached[False] + 1 if packet.to_client else reached[True]
            if packet.opens:
                connecting.add(packet.source)
            elif not packet.is_message and packet.source not in connecting:
                continue
            elif not packet.to_client:
                connecting.discard(packet.source)
            under_way[packet.to_client].append((packet.arrived, length))
            if packet.to_client:
                trips = max(trips, length)
        return trips

    def connections(self, begin: float = 0.0, end: float = float("inf")) -> int:
        """Count the connections that the client opens between two times."""
        times = {p.source: p.sent for p in self.packets if p.opens and not p.to_client}
        return sum(begin <= sent <= end for sent in times.values())

    def payload(self, to_client: bool = True) -> int:
        """Return the bytes of TCP in a direction."""
        return sum(p.payload for p in self.packets if p.arrived and p.to_client == to_client)


class Outcome(NamedTuple):
    """What a statement has done in another process."""

    value: Any
    begin: float
    end: float
    """Times of `time.monotonic`."""
    error: str | None
    """The name of the class of the exception that it has raised, or None."""
    message: str = ""

    @property
    def seconds(self) -> float:
        """The time that it has taken."""
        return self.end - self.begin


class RemotePython:
    """An interpreter in a namespace; its variables last from one call to the next."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def begin(self, code: str, timeout: float = 60.0) -> Callable[[], Outcome]:
        """Start code whose last line is an expression; return what waits for its outcome."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()
        return partial(self._wait, timeout)

    def __call__(self, code: str, timeout: float = 60.0) -> Outcome:
        """Run code whose last line is an expression, of a value that JSON can represent.

        If it takes more than `timeout` seconds, the interpreter is killed, and this fails.
        """
        return self.begin(code, timeout)()

    def value(self, code: str, timeout: float = 60.0) -> Any:
        """Run code and return its value; an exception there is one here."""
        outcome = self(code, timeout)
        assert outcome.error is None, f"{outcome.error}: {outcome.message}"
        return outcome.value

    def _wait(self, timeout: float) -> Outcome:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            self.process.kill()
            raise AssertionError(f"it was not done after {timeout:g} s")
        line = self.process.stdout.readline()
        assert line, "the interpreter has ended"
        return Outcome(*json.loads(line))


_INTERPRETER = """
import ast, json, sys, time
import splitarrow
names = {"splitarrow": splitarrow, "time": time}
for line in sys.stdin:
    *body, last = ast.parse(json.loads(line)).body
    body = compile(ast.Module(body, []), "<test>", "exec")
    last = compile(ast.Expression(last.value), "<test>", "eval")
    value = error = None
    message = ""
    begin = time.monotonic()
    try:
        exec(body, names)
        value = eval(last, names)
    except Exception as failure:
        error, message = type(failure).__name__, str(failure)
    end = time.monotonic()
    print(json.dumps([value, begin, end, error, message]), flush=True)
"""


class Link:
    """Two namespaces, and the link between them.

    Parameters
    ----------
    delay_ms : float
        The time of a round trip, half of which each direction takes.
    rate_mbit : float
        What each direction carries, in Mbit/s; 0 for no limit.
    loss : float
        The share of the packets of each direction that are lost.
    queue_bytes : int, optional
        What may wait in front of the link. By default, what the link carries in a round trip,
        and at least 1 MiB.
    hole : str
        The directions in which every packet vanishes, what is under way included.
    path_mtu : int, optional
        The largest packet that passes; larger ones vanish.
    mtu : int
        The MTU of both devices. It cannot be changed later.

    Raises
    ------
    LinkUnavailableError
        On entering, if this machine cannot emulate a link.
    """

    def __init__(
        self,
        *,
        delay_ms: float = 0.0,
        rate_mbit: float = 1000.0,
        loss: float = 0.0,
        queue_bytes: int | None = None,
        hole: Hole = "none",
        path_mtu: int | None = None,
        mtu: int = 1500,
    ) -> None:
        self._settings: dict[str, Any] = {
            "delay_ms": delay_ms,
            "rate_mbit": rate_mbit,
            "loss": loss,
            "queue_bytes": queue_bytes,
            "hole": hole,
            "path_mtu": path_mtu,
        }
        self._mtu = mtu
        self._processes: list[subprocess.Popen[Any]] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Link:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._emulator = subprocess.Popen(
                [_compile(), str(self._mtu)],
                stdin=theirs.fileno(),
                stderr=subprocess.PIPE,
                text=True,
            )
        try:
            ready = self._socket.recv(64).decode()
            if not ready:
                assert self._emulator.stderr is not None
                reason = self._emulator.stderr.read().strip()
                raise LinkUnavailableError(f"cannot make {reason}; the emulated link needs root")
            self._namespaces = dict(zip(_SIDES, map(int, ready.split()), strict=True))
            self._configure()
            self.set()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the programs that still run, and remove the link."""
        for process in self._processes:
            process.kill()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            process.wait()
        self._socket.close()
        self._emulator.wait()
        assert self._emulator.stderr is not None
        self._emulator.stderr.close()

    def _configure(self) -> None:
        addresses = {"server": (SERVER, SERVER_V6), "client": (CLIENT, CLIENT_V6)}
        for side in _SIDES:
            lines = ["ip link set lo up", "ip link set link0 txqueuelen 10000 up"]
            lines += [f"ip addr add {addresses[side][0]}/24 dev link0"]
            if Path("/proc/sys/net/ipv6").exists():
                lines += [f"ip addr add {addresses[side][1]}/64 dev link0 nodad"]
            lines += [f"echo {v} > /proc/sys/net/ipv4/{k}" for k, v in _SETTINGS.items()]
            done = self.run(side, ["sh", "-ec", "\n".join(lines)], capture_output=True, text=True)
            if done.returncode:
                raise LinkUnavailableError(f"cannot configure a namespace: {done.stderr.strip()}")

    # --- the link -------------------------------------------------------------------------------

    def set(self, **changes: Any) -> None:
        """Change some of the parameters of the constructor, at once."""
        if unknown := changes.keys() - self._settings.keys():
            raise TypeError(f"unknown settings of a link: {', '.join(sorted(unknown))}")
        self._settings |= changes
        at = self._settings
        queue = at["queue_bytes"]
        if queue is None:
            queue = max(1 << 20, int(at["rate_mbit"] * 125 * at["delay_ms"]))
        self._request(
            f"set delay={int(at['delay_ms'] * 5e5)} rate={at['rate_mbit'] * 1e6:.0f} "
            f"loss={at['loss']} queue={queue} hole={_HOLES.index(at['hole'])} "
            f"path_mtu={at['path_mtu'] or 0}"
        )

    def seed(self, number: int) -> None:
        """Start the random loss anew."""
        self._request(f"set seed={number}")

    def forget_connections(self) -> None:
        """Drop the packets of all open connections from now on, as a NAT does that forgot them.

        Neither side gets an answer. New connections pass.
        """
        self._request("forget")

    def stats(self) -> Stats:
        """Return what the link has carried and dropped so far."""
        lines = self._request("stats").splitlines()
        return Stats(*(Figures(*map(int, line.split())) for line in lines))

    @contextmanager
    def capture(self) -> Generator[Capture]:
        """Record the packets of TCP that pass within the context."""
        capture = Capture()
        with tempfile.NamedTemporaryFile("r", prefix="splitarrow-capture-") as file:
            self._request(f"capture {file.name}")
            try:
                yield capture
            finally:
                self._request("capture")
                capture.packets = [_parse_packet(line) for line in file]

    def _request(self, text: str) -> str:
        with self._lock:
            self._socket.sendall(text.encode())
            answer = self._socket.recv(4096).decode()
        assert answer, "the emulator has ended"
        assert not answer.startswith("error"), f"{text}: {answer}"
        return answer

    # --- the namespaces -------------------------------------------------------------------------

    @contextmanager
    def inside(self, side: Side) -> Generator[None]:
        """Move this thread into a namespace: the sockets and processes that it makes stay there."""
        path = f"/proc/{self._emulator.pid}/fd/{self._namespaces[side]}"
        with open("/proc/thread-self/ns/net") as before, open(path) as within:
            _enter(within.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    def popen(self, side: Side, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program in a namespace. It ends with the link at the latest."""
        with self.inside(side):
            self._processes.append(subprocess.Popen(command, **options))
        return self._processes[-1]

    def run(
        self, side: Side, command: Sequence[str], **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Run a program in a namespace until it ends."""
        with self.inside(side):
            return subprocess.run(command, check=False, **options)

    def python(
        self,
        side: Side = "client",
        hosts: dict[str, list[str]] | None = None,
        environment: dict[str, str] | None = None,
    ) -> RemotePython:
        """Start an interpreter that has imported splitarrow; `hosts` gives names addresses."""
        with tempfile.NamedTemporaryFile("w", prefix="splitarrow-hosts-") as file:
            for name, addresses in (hosts or {}).items():
                file.writelines(f"{address} {name}\n" for address in addresses)
            file.flush()
            command = [sys.executable, "-P", "-c", _INTERPRETER]
            process = self.popen(
                side,
                [*contain("" if hosts is None else file.name), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **(environment or {})},
            )
            python = RemotePython(process)
            python.value("1")  # it has begun, so that its file of hosts is mounted
        return python

    @staticmethod
    def congestion_controls() -> list[str]:
        """Return the congestion controls that this kernel has loaded."""
        return Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()

    def set_congestion_control(self, name: str) -> None:
        """Set the congestion control of both sides for new connections, such as ``cubic``."""
        for side in _SIDES:
            command = ["ip", "route", "change", "10.77.0.0/24", "dev", "link0", "congctl", name]
            self.run(side, command).check_returncode()


def contain(hosts: str = "") -> tuple[str, ...]:
    """Return the beginning of a command for a program that looks for devices in ``/sys``.

    The program then sees those of its namespace, as in a container; `hosts` replaces
    ``/etc/hosts``.
    """
    script = 'mount -t sysfs none /sys; [ ! "$0" ] || mount --bind "$0" /etc/hosts; exec "$@"'
    return ("unshare", "--mount", "sh", "-ec", script, hosts)


MakeLink = Callable[..., Link]
"""Makes a link with the arguments of `Link`."""


def _parse_packet(line: str) -> Packet:
    sent, arrived, direction, *rest = map(int, line.split())
    return Packet(sent / 1e9, arrived / 1e9, bool(direction), *rest)


def _enter(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


def _compile() -> str:
    """Return the path of the emulator; the first use of a source compiles it."""
    for program in ("cc", "ip", "unshare"):
        if shutil.which(program) is None:
            raise LinkUnavailableError(f"the emulated link needs the program {program}")
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        raise LinkUnavailableError("the emulated link needs /dev/net/tun")
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    program = _SOURCE.parent / "__pycache__" / f"emulator-{digest}"
    if not program.exists():
        program.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as folder:
            made = Path(folder, "emulator")
            subprocess.run(["cc", "-O2", "-o", made, _SOURCE], check=True)
            made.rename(program)  # another process may have made the same
    return str(program)
