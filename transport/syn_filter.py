"""A filter of the kernel that lets a listening socket ignore a part of its new clients.

It works for sockets whose connections a library accepts. A client whose SYN is ignored sends it
again after one second, and then after longer times, so it connects later.
"""

from __future__ import annotations

import ctypes
import socket
import struct

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_INSTRUCTION = struct.Struct("@HBBI")
_PROGRAM = struct.Struct("@HP")
# Instructions of classic BPF (linux/filter.h).
_LOAD_BYTE, _LOAD_WORD, _AND = 0x30, 0x20, 0x54
_JUMP_EQUAL, _JUMP_GREATER_EQUAL, _RETURN = 0x15, 0x35, 0x06
_FLAGS_OFFSET, _SYN = 13, 0x02
_RANDOM = 0xFFFFF000 + 56
_WHOLE_PACKET = 0xFFFFFFFF


def set_admitted_share(listener: socket.socket, share: float) -> None:
    """Let a listening TCP socket admit a random part of its new clients.

    Its connections are not affected, although they inherit the filter: they get no SYN.

    Parameters
    ----------
    listener : socket.socket
        The socket.
    share : float
        The share of SYN packets to admit, from 0 to 1. With 1, the filter is removed.

    Raises
    ------
    OSError
        If the kernel does not support filters, or there is none to remove.
    """
    if share >= 1:
        listener.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        return
    least = min(int((1 - share) * (1 << 32)), (1 << 32) - 1)
    instructions = [
        (_LOAD_BYTE, 0, 0, _FLAGS_OFFSET),
        (_AND, 0, 0, _SYN),
        (_JUMP_EQUAL, 3, 0, 0),
        (_LOAD_WORD, 0, 0, _RANDOM),
        (_JUMP_GREATER_EQUAL, 1, 0, least),
        (_RETURN, 0, 0, 0),
        (_RETURN, 0, 0, _WHOLE_PACKET),
    ]
    code = b"".join(_INSTRUCTION.pack(*instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _PROGRAM.pack(len(instructions), ctypes.addressof(buffer))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
