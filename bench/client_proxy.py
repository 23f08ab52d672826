"""Loads through a proxy that answers produce requests itself: `python bench/client_proxy.py`.

Options: `[--rounds N] [--scale S]`. The proxy forwards requests to a Shoal broker. It answers every
Produce of a connection after the first with the first answer, so nothing is checked or stored. The
proxy is a Python process whose work slows the clients down, so its rate is no upper bound: Kafka
has been faster. It only shows how a client behaves if the broker does almost nothing. Shoal, Kafka
and the proxy alternate in one run. There is no verifying pass, since the proxy stores no records.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import shutil
import socket
import statistics
import struct
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import java_loads
import uvloop
from brokers import Broker, Kafka, Shoal, free_port
from load_setup import Figures, Run
from loads import synchronous
from rich.console import Console
from rich.table import Table
from shoal.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable

SEND_BUFFER = 102_400  # as Kafka's and Shoal's
_SIZE = struct.Struct(">i")


def frames(arrived: bytearray) -> list[bytes]:
    """Remove the whole messages at the start of the buffer and return them with their size."""
    found = []
    while len(arrived) >= 4 and len(arrived) >= (size := 4 + _SIZE.unpack_from(arrived)[0]):
        found.append(bytes(arrived[:size]))
        del arrived[:size]
    return found


class Front(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, broker: tuple[str, int]) -> None:
        self._broker = broker
        self._arrived = bytearray()
        self._back: Back | None = None
        self._produced = b""
        #: API keys of forwarded requests, in order.
        self._passed: list[int] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._opening = asyncio.ensure_future(self._open())

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        _, self._back = await loop.create_connection(lambda: Back(self), *self._broker)
        self.data_received(b"")

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._back is not None:
            self._back.transport.close()

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        if self._back is None:
            return
        for frame in frames(self._arrived):
            api, correlation, known = frame[4] << 8 | frame[5], frame[8:12], self._produced
            if api == ApiKey.PRODUCE and known and not self._passed:
                self._transport.write(known[:4] + correlation + known[8:])
            else:
                self._passed.append(api)
                self._back.transport.write(frame)

    def answered(self, answer: bytes) -> None:
        """Handle the broker's answer, including its size, to the oldest forwarded request."""
        if self._passed.pop(0) == ApiKey.PRODUCE:
            self._produced = answer
        self._transport.write(answer)


class Back(asyncio.Protocol):
    """The connection to the broker for one client connection."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._arrived = bytearray()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        for answer in frames(self._arrived):
            self._front.answered(answer)


def _serve(port: int, broker_port: int) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(
            lambda: Front(("127.0.0.1", broker_port)), "127.0.0.1", port
        )
        await server.serve_forever()

    uvloop.run(main())


class Proxied(Shoal):
    """A broker that advertises the address of the proxy."""

    name = "proxy"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._front = free_port()
        self._server = multiprocessing.Process(
            target=_serve, args=(self._front, self.port), daemon=True
        )
        self._server.start()

    def command(self) -> list[str]:
        return [
            *super().command(),
            f"--set=advertised.listeners=PLAINTEXT://127.0.0.1:{self._front}",
        ]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._front}"

    def stop(self) -> None:
        self._server.terminate()
        super().stop()


LOADS: dict[str, Callable[[Run], Figures]] = {
    "produce 1 KB acks=all, Java": lambda r: java_loads.rate_of_produce(r, 400_000, 1024, "all"),
    "synchronous produce, 1 producer": lambda r: synchronous(r, 10_000, 1),
    "synchronous produce, 10 producers": lambda r: synchronous(r, 20_000, 10),
}


def measure(brokers: list[Broker], rounds: int, scale: float) -> dict[str, dict[str, list[float]]]:
    """Return the rates by load and broker, without the first round, which warms up."""
    rates: dict[str, dict[str, list[float]]] = {}
    for name, load in LOADS.items():
        for number in range(-1, rounds):
            for broker in brokers if number % 2 else brokers[::-1]:
                run = Run(broker.bootstrap, scale, stores=broker.name != Proxied.name)
                rate = load(run)["rate"]
                run.remove_topics()
                if number >= 0:
                    rates.setdefault(name, {}).setdefault(broker.name, []).append(rate)
                    print(f"{name:36} {broker.name:9} {rate:12,.0f}", flush=True)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-"))
    brokers: list[Broker] = [make(folder / make.name) for make in (Shoal, Proxied, Kafka)]
    try:
        for broker in brokers:
            broker.start()
        rates = measure(brokers, options.rounds, options.scale)
    finally:
        for broker in brokers:
            broker.stop()
        shutil.rmtree(folder, ignore_errors=True)
    table = Table("load", "Shoal", "Kafka", "proxy", "Shoal / Kafka", "proxy / Kafka")
    for name, found in rates.items():
        ours, theirs, proxy = (statistics.median(found[b]) for b in ("shoal", "kafka", "proxy"))
        table.add_row(
            name,
            *(f"{rate:,.0f}" for rate in (ours, theirs, proxy)),
            f"{ours / theirs:.2f}",
            f"{proxy / theirs:.2f}",
        )
    Console(width=None if sys.stdout.isatty() else 130).print(table)


if __name__ == "__main__":
    main()
