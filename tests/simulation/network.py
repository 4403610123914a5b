"""The network of a simulation: hosts, links, and TCP connections that delay, stall, break and end.

`install` replaces the sockets of Python. A connection carries bytes in order, in segments of any
size, with the delay of its link. What one end has sent and the other has not read is bounded, so
that a send can be partial. While a link is down, its segments wait; a connection breaks if that
takes too long, as with keep-alive probes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import stat
import struct
import termios
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .clock import SimulationError, Thread, World
from .processes import Process

_FIRST_DESCRIPTOR = 1_000_000
_FIRST_PORT = 40_000
_READ, _WRITE = 1, 2
_LOST_SECONDS = 60.0
"""The time after which the probes of a connection over a dead link end it."""
_LARGE_BYTES = 1000
"""The size of a segment that belongs to a stream."""
_LARGE_FACTOR = 10
"""How much more often a connection breaks within such a segment."""
_LOCAL_SECONDS = 0.00002
_TCP_INFO = struct.Struct("<2xBB52xI")
_CREDENTIALS = struct.Struct("iII")
_real_pread, _real_ioctl, _real_sendfile = os.pread, fcntl.ioctl, os.sendfile


@dataclass(slots=True)
class Carried:
    """What one process has exchanged over one of its ports."""

    connections: int = 0
    """Accepted connections."""
    nbytes: int = 0
    """Bytes that the process has sent."""
    requests: int = 0
    """Segments that it has received."""


class Network:
    """The links and connections of a world."""

    current: Network

    def __init__(self, world: World) -> None:
        self.world = world
        self.descriptors: dict[int, End | Listening] = {}
        self.listening: dict[tuple[str, int], Listening] = {}
        self.ends: dict[int, End] = {}
        """The ends that are not closed, by number."""
        self.stalled: dict[int, End] = {}
        """The ends, perhaps closed, whose segments wait for a link."""
        self.down: dict[frozenset[str], float] = {}
        """The links that are down, with the time since which they are."""
        self.carried: dict[tuple[str, int], Carried] = defaultdict(Carried)
        """What the processes have exchanged, by their names and ports."""
        self.seconds = 0.001
        """The delay of a link between two hosts, at least."""
        self.jitter = 0.0
        self.buffer_bytes = 64 << 10
        """What an end may have sent that the other one has not read."""
        self.split_share = 0.0
        """How often a segment arrives in two parts."""
        self.break_share = 0.0
        """How often a connection breaks within a segment."""
        self.mangle_share = 0.0
        """How often the messages that a daemon sends together are repeated and reordered."""
        self.large_segments = 0
        """The segments of a stream that have left so far."""
        self.triggers: dict[int, list[Callable[[], object]]] = defaultdict(list)
        """What happens when the segment of a number leaves."""
        self.on_break: Callable[[], object] = lambda: None
        self._next_descriptor = _FIRST_DESCRIPTOR
        self._next_port = _FIRST_PORT

    def estimate_seconds(self, nbytes: int) -> float:
        """Return how long it takes at least to transfer some bytes."""
        return nbytes / self.buffer_bytes * 2 * (self.seconds + self.jitter)

    def open(self, what: End | Listening) -> int:
        """Return a new descriptor."""
        self._next_descriptor += 1
        self.descriptors[self._next_descriptor] = what
        return self._next_descriptor

    def choose_port(self) -> int:
        """Return a free port."""
        self._next_port += 1
        return self._next_port

    def is_down(self, one: str, other: str) -> bool:
        """Return whether the link between two hosts is down."""
        return bool(self.down) and frozenset((one, other)) in self.down

    def draw_delay(self, one: str, other: str) -> float:
        """Return the delay of a segment."""
        if one == other:
            return _LOCAL_SECONDS
        return self.seconds + self.jitter * self.world.random.random()

    def cut_link(self, one: str, other: str) -> None:
        """Let a link go down: nothing passes it."""
        key = frozenset((one, other))
        if len(key) == 1 or key in self.down:
            return
        self.down[key] = self.world.now
        self.world.record(f"link {one} – {other} goes down", "network")
        self.world.call_later(_LOST_SECONDS, lambda: self._lose(key, self.down.get(key)))

    def _lose(self, key: frozenset[str], since: float | None) -> None:
        if since is None or self.world.now < since + _LOST_SECONDS:
            return
        for end in list(self.ends.values()):
            if frozenset((end.address[0], end.peer_address[0])) == key:
                end.break_off(errno.ETIMEDOUT)

    def heal(self) -> None:
        """Let all links work."""
        if not self.down:
            return
        self.down.clear()
        self.world.record("all links work", "network")
        stalled, self.stalled = self.stalled, {}
        for end in stalled.values():
            end.pump()

    def break_one(self) -> None:
        """Break a connection: both ends get an error."""
        ends = [end for end in self.ends.values() if end.is_connected]
        if ends:
            busy = [end for end in ends if end.unread]
            self.world.random.choice(busy or ends)._break()

    def kill(self, process: Process, *, is_silent: bool) -> None:
        """Close the sockets of a process that has died. If its host is gone, nobody learns it."""
        for listening in [each for each in self.listening.values() if each.process is process]:
            listening.close()
        for end in [each for each in self.ends.values() if each.process is process]:
            if is_silent:
                end.vanish()
            else:
                end.close()


class Waitable:
    """What a thread can wait for."""

    def __init__(self) -> None:
        self.waiting: list[Thread] = []

    def notify(self) -> None:
        """Let the threads that wait look again."""
        for thread in self.waiting:
            World.current.wake(thread)

    def ready(self, wanted: int) -> int:
        """Return which of the wanted events have happened."""
        raise NotImplementedError


class Listening(Waitable):
    """A port on which a process accepts connections."""

    def __init__(self, process: Process, address: tuple[str, int]) -> None:
        super().__init__()
        self.process = process
        self.address = address
        self.pending: deque[End] = deque()

    def ready(self, wanted: int) -> int:
        return wanted & _READ if self.pending else 0

    def close(self) -> None:
        """Stop listening."""
        network = Network.current
        if network.listening.get(self.address) is self:
            del network.listening[self.address]
        for end in self.pending:
            end.close(reset=True)
        self.pending.clear()


class End(Waitable):
    """One end of a connection."""

    def __init__(self, process: Process, address: tuple[str, int]) -> None:
        super().__init__()
        self.process = process
        self.address = address
        self.peer_address = ("", 0)
        self.peer: End | None = None
        self.number = World.current.next_id()
        self.is_connecting = self.is_connected = self.is_closed = self.has_ended = False
        self.error = 0
        self.low_water = 1
        self.blocks = True
        """Whether calls without a time limit wait."""
        self.lingers = True
        self.user_seconds: float | None = None
        """How long a host may acknowledge nothing that was sent (TCP_USER_TIMEOUT)."""
        self._is_timed = False
        self._sent_at = 0.0
        """When the first of the bytes was sent that nobody has read."""
        self.received: deque[memoryview] = deque()
        self.received_bytes = 0
        self.is_at_end = False
        self.unread = 0
        """What this end has sent and the other end has not read, in bytes."""
        self._flying: deque[tuple[float, str, bytes, list[int]]] = deque()
        self._rights: deque[tuple[int, list[int]]] = deque()
        """Descriptors that have arrived, with the position of the byte that they came with."""
        self._position = 0
        self._arrives = 0.0
        self._is_cut = False
        """Whether nothing that is sent now arrives, because the connection breaks before."""
        Network.current.ends[self.number] = self

    # Connecting

    def connect(self, address: tuple[str, int]) -> None:
        """Begin to connect."""
        network, world = Network.current, World.current
        self.peer_address, self.is_connecting = address, True
        delay = network.draw_delay(self.address[0], address[0])

        def arrive() -> None:
            if self.is_closed:
                return
            if network.is_down(self.address[0], address[0]) or Process.is_off(address[0]):
                world.call_later(1.0, arrive)  # the kernel repeats it
                return
            listening = network.listening.get(address)
            if listening is None:
                world.call_later(delay, lambda: self.break_off(errno.ECONNREFUSED))
                return
            peer = End(listening.process, address)
            peer.peer_address, peer.peer, peer.is_connected = self.address, self, True
            self.peer = peer
            listening.pending.append(peer)
            listening.notify()
            world.call_later(delay, self._establish)

        world.call_later(delay, arrive)

    def connect_here(self, path: str) -> None:
        """Connect to a Unix socket, which only processes of the same host reach."""
        address = path, 0
        listening = Network.current.listening.get(address)
        if not os.path.exists(path):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        if listening is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        if listening.process.address != self.process.address:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        peer = End(listening.process, address)
        self.address, self.peer_address, peer.peer_address = address, address, address
        self.peer, peer.peer = peer, self
        self.is_connected = peer.is_connected = True
        listening.pending.append(peer)
        listening.notify()

    def _establish(self) -> None:
        if not self.is_closed and not self.error:
            self.is_connecting, self.is_connected = False, True
            self.notify()

    # Sending

    @property
    def room(self) -> int:
        """The bytes that can be sent now."""
        return max(0, Network.current.buffer_bytes - self.unread)

    def send(self, parts: Iterable[Any], descriptors: Iterable[int] = ()) -> int:
        """Send what there is room for, and copies of descriptors; return its size."""
        self.check()
        if self.has_ended:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        room = self.room
        if not room:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        taken: list[bytes] = []
        for part in parts:
            view = memoryview(part)
            if view.format != "B":
                view = view.cast("B")
            taken.append(bytes(view[:room]))
            room -= len(taken[-1])
            if not room:
                break
        data = b"".join(taken)
        if not self.unread:
            self._sent_at = World.current.now
        self.unread += len(data)
        Network.current.carried[self.process.name, self.address[1]].nbytes += len(data)
        self._fly("data", data, [os.dup(each) for each in descriptors])
        if self.user_seconds is not None and not self._is_timed:
            self._is_timed = True
            World.current.call_later(self.user_seconds, self._check_acknowledged)
        return len(data)

    def _check_acknowledged(self) -> None:
        self._is_timed = False
        if self.user_seconds is None or not self.unread or self.is_closed:
            return
        left = self.user_seconds - self.silence
        if left <= 0.01:
            self.break_off(errno.ETIMEDOUT)
        else:
            self._is_timed = True
            World.current.call_later(left, self._check_acknowledged)

    def _fly(self, kind: str, data: bytes = b"", descriptors: Sequence[int] = ()) -> None:
        """Let a segment leave. It arrives after those before it."""
        network, world = Network.current, World.current
        if self._is_cut:
            return
        parts = [data]
        share = network.break_share
        if len(data) >= _LARGE_BYTES:
            share *= _LARGE_FACTOR
            network.large_segments += 1
            for trigger in network.triggers.pop(network.large_segments, ()):
                world.call_at(world.now, trigger)
        breaks = share and world.random.random() < share
        if len(data) > 1 and (breaks or world.random.random() < network.split_share):
            middle = world.random.randrange(1, len(data))
            parts = [data[:middle], data[middle:]]
        for part in parts:
            delay = network.draw_delay(self.address[0], self.peer_address[0])
            self._arrives = max(self._arrives, world.now + delay)
            self._flying.append((self._arrives, kind, part, [*descriptors]))
            descriptors = ()
            world.call_at(self._arrives, self.pump)
            if breaks:
                self._is_cut = True
                world.call_at(self._arrives, self._break)
                return

    def _break(self) -> None:
        """Let both ends lose the connection."""
        if self.is_connected and not self.error:
            World.current.record(
                f"connection {self.address} – {self.peer_address} breaks", "network"
            )
            Network.current.on_break()
        self.break_off(errno.ECONNRESET)
        if self.peer is not None:
            self.peer.break_off(errno.ECONNRESET)

    def pump(self) -> None:
        """Let the segments arrive whose time has come."""
        network, now = Network.current, World.current.now
        if not self._flying:
            return
        if network.is_down(self.address[0], self.peer_address[0]):
            network.stalled[self.number] = self
            return
        peer = self.peer
        if Process.is_off(self.peer_address[0]):
            World.current.call_later(1.0, self.pump)  # the kernel repeats it
            return
        while self._flying and self._flying[0][0] <= now:
            _, kind, data, descriptors = self._flying.popleft()
            if peer is None:
                continue
            if kind == "reset":
                peer.break_off(errno.ECONNRESET)
            elif peer.is_closed:
                if kind == "data":  # the other host answers with a reset
                    self.break_off(errno.ECONNRESET)
            elif kind == "end":
                peer.is_at_end = True
                peer.notify()
            else:
                network.carried[peer.process.name, peer.address[1]].requests += 1
                if descriptors:
                    peer._rights.append((peer._position + peer.received_bytes, descriptors))
                peer.received.append(memoryview(data))
                peer.received_bytes += len(data)
                peer.notify()

    # Receiving

    def receive_into(self, views: Iterable[Any], *, peek: bool = False) -> int:
        """Fill views with what has arrived; 0 at the end."""
        total = 0
        # What comes with a descriptor begins a new message.
        later = [at for at, _ in self._rights if at > self._position]
        most = later[0] - self._position if later else self.received_bytes
        for view in views:
            target = memoryview(view)
            if target.format != "B":
                target = target.cast("B")
            while self.received and len(target) and total < most:
                part = self.received[0]
                count = min(len(part), len(target), most - total)
                target[:count] = part[:count]
                target = target[count:]
                total += count
                if peek:
                    return total
                if count == len(part):
                    self.received.popleft()
                else:
                    self.received[0] = part[count:]
        if total:
            self.received_bytes -= total
            self._position += total
            peer = self.peer
            if peer is not None:
                peer.unread -= total
                peer.notify()
            return total
        self.check()
        if self.is_at_end or self.has_ended:
            return 0
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    def take_descriptors(self) -> list[int]:
        """Return the descriptors that came with what was received last."""
        if self._rights and self._rights[0][0] < self._position:
            return self._rights.popleft()[1]
        return []

    def check(self) -> None:
        """Raise the error of the connection."""
        if self.is_closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        if not self.is_connected:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    # The end

    def shut_down(self) -> None:
        """Send the end, and receive nothing more."""
        if not self.is_connected or self.error:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        if not self.has_ended:
            self.has_ended = True
            self._fly("end")
        self.notify()

    def close(self, *, reset: bool = False) -> None:
        """Close this end, as the kernel does."""
        if self.is_closed:
            return
        self.is_closed = True
        Network.current.ends.pop(self.number, None)
        if self.is_connected and not self.error:
            if reset or self.received or not self.lingers:
                self._flying = deque(each for each in self._flying if each[0] <= World.current.now)
                self._fly("reset")
            elif not self.has_ended:
                self._fly("end")
        elif self.peer is not None:
            self.peer.break_off(errno.ECONNRESET)
        self.received.clear()
        for _, descriptors in self._rights:
            for each in descriptors:
                os.close(each)
        self._rights.clear()
        self.notify()

    def vanish(self) -> None:
        """Disappear with the host."""
        self.is_closed = True
        Network.current.ends.pop(self.number, None)
        self._flying.clear()
        if self.peer is not None:  # its probes are not answered
            lose = partial(self.peer.break_off, errno.ETIMEDOUT)
            World.current.call_later(_LOST_SECONDS, lose)

    def break_off(self, code: int) -> None:
        """Let this end fail with an error."""
        if not self.is_closed and not self.error:
            self.error = code
            self.is_connecting = False
            self._flying.clear()
            self.notify()

    def ready(self, wanted: int) -> int:
        found = 0
        if self.error or self.is_closed:
            return wanted
        if wanted & _READ and (
            self.received_bytes >= self.low_water or self.is_at_end or self.has_ended
        ):
            found |= _READ
        if wanted & _WRITE and self.is_connected and self.room:
            found |= _WRITE
        return found

    @property
    def silence(self) -> float:
        """The seconds for which the other host has acknowledged nothing that waits for it."""
        network = Network.current
        since = network.down.get(frozenset((self.address[0], self.peer_address[0])))
        if since is None and Process.is_off(self.peer_address[0]):
            since = Process.by_address[self.peer_address[0]].off_since
        if since is None or not self.unread:
            return 0.0
        return World.current.now - max(since, self._sent_at)


def wait_for_descriptors(
    wanted: Mapping[int, int], timeout: float | None, is_woken: Callable[[], bool] = lambda: False
) -> list[tuple[int, int]]:
    """Wait until a descriptor is ready, and return all that are, with their events."""
    world, descriptors = World.current, Network.current.descriptors
    end = None if timeout is None else world.now + max(timeout, 0.0)
    sockets = [
        (each, descriptors[each], mask) for each, mask in wanted.items() if each in descriptors
    ]
    closed = [(each, mask) for each, mask in wanted.items() if each not in descriptors]
    while True:
        found = closed + [
            (each, events) for each, sock, mask in sockets if (events := sock.ready(mask))
        ]
        if found or is_woken() or (end is not None and world.now >= end):
            return found
        thread = world.thread
        if thread is None:
            raise SimulationError("the hub would wait for a socket")
        for _, sock, _ in sockets:
            sock.waiting.append(thread)
        world.block(None if end is None else end - world.now, "the network")
        for _, sock, _ in sockets:
            sock.waiting.remove(thread)


class Socket:
    """A simulated socket, with the interface of `socket.socket`."""

    def __init__(
        self,
        family: int = socket.AF_INET,
        type: int = socket.SOCK_STREAM,
        proto: int = 0,
        fileno: int | None = None,
    ) -> None:
        self.family, self.type, self.proto = family, type, proto
        self._end: End | None = None
        self._listening: Listening | None = None
        self._bound: tuple[str, int] | None = None
        self._descriptor = -1
        self._timeout: float | None = None
        if fileno is not None:
            what = Network.current.descriptors[fileno]
            self._descriptor = fileno
            if isinstance(what, End):
                self._end = what
            else:
                self._listening = what

    @staticmethod
    def _process() -> Process:
        thread = World.current.thread
        assert thread is not None
        return thread.process

    def _open(self) -> End:
        if self._end is None:
            network, process = Network.current, self._process()
            self._end = End(process, (process.address, network.choose_port()))
            self._end.blocks = self._timeout is None
            self._descriptor = network.open(self._end)
        return self._end

    def fileno(self) -> int:
        if self._descriptor < 0 and self._listening is None and self._end is None:
            return -1
        return self._descriptor

    def setblocking(self, flag: bool) -> None:
        self.settimeout(None if flag else 0.0)

    def settimeout(self, value: float | None) -> None:
        self._timeout = value
        if self._end is not None:
            self._end.blocks = value is None

    def gettimeout(self) -> float | None:
        return self._timeout

    def bind(self, address: Any) -> None:
        if self.family == socket.AF_UNIX:
            try:
                os.mknod(address, stat.S_IFSOCK | 0o600)
            except FileExistsError:
                raise OSError(errno.EADDRINUSE, "Address already in use") from None
            self._bound = (address, 0)
            return
        host = self._process().address
        port = address[1] or Network.current.choose_port()
        if (host, port) in Network.current.listening:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self._bound = (host, port)

    def listen(self, backlog: int = 0) -> None:
        assert self._bound is not None
        self._listening = Listening(self._process(), self._bound)
        Network.current.listening[self._bound] = self._listening
        self._descriptor = Network.current.open(self._listening)

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        if self._listening is None or not self._listening.pending:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        end = self._listening.pending.popleft()
        Network.current.carried[end.process.name, end.address[1]].connections += 1
        sock = Socket(self.family, self.type, self.proto, Network.current.open(end))
        return sock, end.peer_address

    def connect_ex(self, address: tuple[str, int]) -> int:
        self._open().connect((address[0], address[1]))
        return errno.EINPROGRESS

    def connect(self, address: Any) -> None:
        if self.family == socket.AF_UNIX:
            self._open().connect_here(address)
            return
        self.connect_ex(address)
        wait_for_descriptors({self._descriptor: _WRITE}, self._timeout)
        if self._open().is_connecting:
            raise TimeoutError("timed out")
        self._open().check()

    def getsockname(self) -> tuple[str, int]:
        if self._listening is not None:
            return self._listening.address
        return self._bound or self._open().address

    def getpeername(self) -> tuple[str, int]:
        end = self._open()
        if not end.is_connected or end.error:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return end.peer_address

    def sendmsg(self, buffers: Iterable[Any], ancdata: Any = (), flags: int = 0) -> int:
        return self._open().send(buffers, [each for _, _, numbers in ancdata for each in numbers])

    def send(self, data: Any, flags: int = 0) -> int:
        return self._open().send([data])

    def sendall(self, data: Any, flags: int = 0) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.send(view) :]
            except BlockingIOError:
                wait_for_descriptors({self._descriptor: _WRITE}, None)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        return self._open().receive_into([buffer])

    def recvmsg_into(
        self, buffers: Iterable[Any], ancbufsize: int = 0, flags: int = 0
    ) -> tuple[int, list[Any], int, Any]:
        end = self._open()
        count = end.receive_into(buffers)
        taken = end.take_descriptors()
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", taken).tobytes())
        return count, [rights] if taken else [], 0, None

    def dup(self) -> Socket:
        return Socket(self.family, self.type, self.proto, Network.current.open(self._open()))

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        data = bytearray(bufsize)
        peek = bool(flags & socket.MSG_PEEK)
        while True:
            try:
                return bytes(data[: self._open().receive_into([data], peek=peek)])
            except BlockingIOError:
                waits = self._timeout or (self._timeout is None and self._open().blocks)
                if not waits or flags & socket.MSG_DONTWAIT:
                    raise
                if not wait_for_descriptors({self._descriptor: _READ}, self._timeout):
                    raise TimeoutError("timed out") from None

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        end = self._end
        if (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR):
            return 0 if end is None else end.error
        if (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO):
            silence = 0.0 if end is None else end.silence
            return _TCP_INFO.pack(5 if silence else 0, 0, int(silence * 1000))
        if (level, option) == (socket.SOL_SOCKET, socket.SO_PEERCRED):
            peer = None if end is None else end.peer
            number = 0 if peer is None else 1000 + peer.number
            return _CREDENTIALS.pack(number, os.getuid(), os.getgid())
        if size:
            return b"reno".ljust(size, b"\0")
        return 0

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        end = self._end
        if end is not None and (level, option) == (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT):
            end.user_seconds = value / 1000 if value else None
        if end is None or level != socket.SOL_SOCKET:
            return
        if option == socket.SO_LINGER:
            end.lingers = False
        elif option == socket.SO_RCVLOWAT:
            end.low_water = value

    def shutdown(self, how: int) -> None:
        self._open().shut_down()

    def detach(self) -> int:
        descriptor, self._descriptor = self._descriptor, -1
        self._end = self._listening = None
        return descriptor

    def close(self) -> None:
        if self._descriptor < 0:
            return
        descriptors = Network.current.descriptors
        what = descriptors.pop(self._descriptor, None)
        self._descriptor = -1
        if (
            what is None
            or what.process.is_dead
            or any(each is what for each in descriptors.values())
        ):
            return
        what.close()

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._descriptor >= 0 and World.find() is not None:
            self.close()


class Poll:
    """`select.poll` and `select.epoll` over simulated sockets."""

    def __init__(self, *_: object) -> None:
        self._wanted: dict[int, int] = {}

    @staticmethod
    def _find(descriptor: Any) -> int:
        return descriptor if isinstance(descriptor, int) else descriptor.fileno()

    def register(self, descriptor: Any, events: int = select.POLLIN | select.POLLOUT) -> None:
        reads = _READ if events & (select.POLLIN | select.EPOLLRDHUP) else 0
        writes = _WRITE if events & select.POLLOUT else 0
        self._wanted[self._find(descriptor)] = reads | writes

    modify = register

    def unregister(self, descriptor: Any) -> None:
        self._wanted.pop(self._find(descriptor), None)

    def _wait(self, seconds: float | None) -> list[tuple[int, int]]:
        found = wait_for_descriptors(self._wanted, seconds)
        return [
            (each, (select.POLLIN if events & _READ else 0) | (4 if events & _WRITE else 0))
            for each, events in found
        ]

    def poll(self, milliseconds: float | None = None) -> list[tuple[int, int]]:
        return self._wait(None if milliseconds is None else milliseconds / 1000)

    def close(self) -> None:
        self._wanted.clear()


class Epoll(Poll):
    """`select.epoll`, whose time is in seconds."""

    def poll(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, timeout: float | None = None, maxevents: int = -1
    ) -> list[tuple[int, int]]:
        return self._wait(None if timeout is None or timeout < 0 else timeout)


def _send_file(out_fd: int, in_fd: int, offset: int, count: int) -> int:
    end = Network.current.descriptors.get(out_fd)
    if not isinstance(end, End):
        return _real_sendfile(out_fd, in_fd, offset, count)
    end.check()
    room = end.room
    if not room:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    data = _real_pread(in_fd, min(count, room), offset)
    return end.send([data]) if data else 0


def _control(descriptor: Any, request: int, argument: Any = 0, *flags: Any) -> Any:
    """Answer how much of what was sent is unread, as `fcntl.ioctl` does."""
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    end = Network.current.descriptors.get(number)
    if request != termios.TIOCOUTQ or not isinstance(end, End):
        return _real_ioctl(descriptor, request, argument, *flags)
    memoryview(argument).cast("B")[:4] = end.unread.to_bytes(4, "little")
    return 0


def _resolve(host: str, port: Any, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]


def install() -> None:
    """Replace the sockets of Python. Call this before other imports."""
    socket.socket = Socket  # pyright: ignore[reportAttributeAccessIssue]
    socket.getaddrinfo = _resolve  # pyright: ignore[reportAttributeAccessIssue]
    select.poll = Poll  # pyright: ignore[reportAttributeAccessIssue]
    select.epoll = Epoll  # pyright: ignore[reportAttributeAccessIssue]
    fcntl.ioctl = _control
    os.sendfile = _send_file  # pyright: ignore[reportAttributeAccessIssue]
