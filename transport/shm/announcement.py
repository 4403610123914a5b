"""The message that announces a region.

Its tag is ``want_data``, and its payload::

    16 bytes identifier of the listener, as in the URI's remote_handle | u64 size in bytes

The region's descriptor comes with the first byte of the message (``SCM_RIGHTS``). The region of a
guarded file has a second one, its revocation socket (`splitarrow.transport.memory.revocation`).
Offsets count from the region that was announced last.

A region in the memory of a device has no descriptor. It consists of allocations, one after another,
and the message continues::

    u32 type of the device, as in DLPack | u32 number of allocations | 16 bytes UUID of the device |
    for each allocation: 64 bytes IPC handle | u64 size in bytes
"""

from __future__ import annotations

import struct

from ...errors import NotAPeerError, ProtocolError
from ...protocol.regions import DeviceHandles

HANDLE_BYTES = 16
"""The size of the identifier, in bytes."""
MAX_ALLOCATIONS = 4096
"""The largest number of allocations in one region of a device."""
_MESSAGE = struct.Struct(f"<{HANDLE_BYTES}sQ")
_DEVICE = struct.Struct("<II16s")
_ALLOCATION = struct.Struct("<64sQ")


def pack_announcement(handle: bytes, size: int) -> bytes:
    """Return the message that announces a region.

    Parameters
    ----------
    handle : bytes
        The 16 bytes of the listener's ``remote_handle``.
    size : int
        The size of the region in bytes.
    """
    return _MESSAGE.pack(handle, size)


def pack_device_announcement(handle: bytes, devices: DeviceHandles) -> bytes:
    """Return the message that announces memory of a device.

    Parameters
    ----------
    handle : bytes
        The 16 bytes of the listener's ``remote_handle``.
    devices : DeviceHandles
        The memory.
    """
    parts = [_MESSAGE.pack(handle, devices.size)]
    parts.append(_DEVICE.pack(devices.type_code, len(devices.allocations), devices.device))
    parts += [_ALLOCATION.pack(each, nbytes) for each, nbytes in devices.allocations]
    return b"".join(parts)


def parse_device_announcement(payload: bytes, handle: bytes) -> DeviceHandles:
    """Return the memory of a device that is announced.

    Raises
    ------
    ProtocolError
        If the message is malformed.
    NotAPeerError
        As `parse_announcement` does.
    """
    size = parse_announcement(payload[: _MESSAGE.size], handle)
    if len(payload) < _MESSAGE.size + _DEVICE.size:
        raise ProtocolError(f"memory of a device was announced in {len(payload)} bytes only")
    type_code, count, device = _DEVICE.unpack_from(payload, _MESSAGE.size)
    begin = _MESSAGE.size + _DEVICE.size
    if not 0 < count <= MAX_ALLOCATIONS or len(payload) != begin + count * _ALLOCATION.size:
        raise ProtocolError(
            f"{count} allocations of a device were announced in {len(payload)} bytes; expected 1 "
            f"to {MAX_ALLOCATIONS}, of {_ALLOCATION.size} bytes each"
        )
    allocations = tuple(_ALLOCATION.iter_unpack(payload[begin:]))
    devices = DeviceHandles(type_code, device, allocations)
    if devices.size != size or not all(nbytes for _, nbytes in allocations):
        raise ProtocolError(
            f"a region of {size} bytes was announced with allocations of {devices.size} bytes"
        )
    return devices


def is_device_announcement(payload: bytes | memoryview) -> bool:
    """Return whether a message announces memory of a device, which has no descriptor."""
    return len(payload) > _MESSAGE.size


def find_device_tag(want_data: int, handle: bytes) -> int | None:
    """Return the tag of data requests by readers that open memory of a device; None if it has none.

    It is ``want_data`` XOR the first 8 bytes of the ``remote_handle``, the least significant first.
    """
    mask = int.from_bytes(handle[:8], "little")
    return want_data ^ mask if mask else None


def parse_announcement(payload: bytes | memoryview, handle: bytes) -> int:
    """Return the size of the region that is announced, in bytes.

    Raises
    ------
    ProtocolError
        If the message is malformed.
    NotAPeerError
        If its identifier is not `handle` because another server now listens at the path.
    """
    if len(payload) != _MESSAGE.size:
        raise ProtocolError(
            f"a region was announced in {len(payload)} bytes; expected {_MESSAGE.size}"
        )
    received, size = _MESSAGE.unpack(payload)
    if received != handle:
        raise NotAPeerError(
            "the announced region does not match the remote_handle of the URI; the server has "
            "restarted since it issued the URI: get a new URI from it"
        )
    return size
