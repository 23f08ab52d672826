"""What leaves on this machine's loopback device while a test runs. It needs Linux and root."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

_ALL_PACKETS = 0x0003
#: Packets are shorter than this: the device's MTU is 64 KiB.
_PACKET_SIZE_MAX = 1 << 17


def lacks() -> str | None:
    """Return why nothing can be captured here, or None."""
    if os.geteuid():
        return "a capture of packets needs root"
    try:
        with Capture(b"nothing", [1]):
            return None
    except (OSError, AttributeError) as error:
        return f"packets cannot be captured here: {error}"


class Capture:
    """Counts the packets of some ports, and the packets with a marker."""

    def __init__(self, marker: bytes, ports: Iterable[int]) -> None:
        self._marker = marker
        self._ports = frozenset(port.to_bytes(2, "big") for port in ports)
        self.packets = self.bytes = self.found = 0
        self._ends = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._socket = socket.socket(
            socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ALL_PACKETS)
        )
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.2)
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ends = True
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        while not self._ends:
            try:
                packet = self._socket.recv(_PACKET_SIZE_MAX)
            except TimeoutError:
                continue
            begin = 4 * (packet[0] & 0x0F)
            if packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
                continue
            if self._ports & {packet[begin : begin + 2], packet[begin + 2 : begin + 4]}:
                self.packets += 1
                self.bytes += len(packet)
                self.found += self._marker in packet
