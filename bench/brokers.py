"""The two compared brokers, each a process on loopback, with their CPU time and memory.

Kafka's jars come from `make java` (tests/compat/lib) or the folder in KAFKA_LIB. Both brokers have
their stock settings with two exceptions: locks may be short, and the files of a deleted topic are
removed after a second instead of a minute. Kafka's JVM has the options of its start script,
including a heap of 1 GiB; BENCH_HEAP sets another heap. A wait ends after BENCH_WAIT seconds, by
default 300.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from load_checks import LoadFailed
from security import BROKERS, DEPLOYED, LISTENER, MUTUAL, SSL
from shoal.monitoring.exposition import parse_samples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from security import Security

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = Path(os.environ.get("KAFKA_LIB", ROOT / "tests/compat/lib"))
HEAP = os.environ.get("BENCH_HEAP", "1g")
#: Upper bound of any wait, in seconds. Kafka creates 1,000 partitions of three replicas in about
#: ten seconds, and needs several times that on a busy machine.
WAIT_S = float(os.environ.get("BENCH_WAIT", "300"))
#: The JVM options of Kafka's start script besides the heap.
JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
#: Delete early, so that the page cache of one load is free for the next. On a virtual machine, new
#: memory from its host took more time than all other work of a broker.
DELETE_DELAY_MS = 1000
START_TIMEOUT_S = WAIT_S / 2
#: Begins a `shoal` command.
SHOAL = (sys.executable, "-m", "shoal.cli")
#: ApiVersions v0 and Metadata v1 without topics: the first metadata answer marks the start.
METADATA = bytes.fromhex("0000000e0003000100000001000000000000")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def describe_kafka() -> dict[str, str]:
    """Return what a run's document says about Kafka: its version, by the name of the server's jar,
    and its heap. A run of Shoal alone needs no jar."""
    versions = [jar.stem.partition("-")[2] for jar in LIBRARY.glob("kafka_2.13-*.jar")]
    return {"kafka": ", ".join(versions), "kafka_heap": HEAP}


class Broker:
    """A broker process. `start_s` is the time to its first metadata answer.

    With `security`, clients use a listener with TLS, beside the plain one. `configs` are further
    configs of the broker.
    """

    name = ""

    def __init__(
        self,
        directory: Path,
        security: Security | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.port = free_port()
        self.security = security
        self.secured_port = free_port() if security else 0
        self._more = dict(configs or {}) | (security.configs() if security else {})
        self.start_s = 0.0
        self._began = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The address on which the broker listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.secured_port}" if self.security else self.address

    def _listeners(self) -> dict[str, str]:
        """Return the addresses of the listeners for clients, by name."""
        found = {"PLAINTEXT": self.address}
        return found | ({LISTENER: self.bootstrap} if self.security else {})

    def _protocols(self) -> str:
        """Return `listener.security.protocol.map`."""
        found = dict.fromkeys(("PLAINTEXT", "CONTROLLER"), "PLAINTEXT")
        if self.security:
            found[LISTENER] = self.security.protocol
            if self.security.kind in (MUTUAL, DEPLOYED):
                found["CONTROLLER"] = SSL
            if self.security.kind == DEPLOYED:
                found[BROKERS] = SSL
        return ",".join(f"{name}:{protocol}" for name, protocol in found.items())

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def has_ended(self) -> bool:
        """Whether the process ended without a stop."""
        return self._process is not None and self._process.poll() is not None

    def reconfigure(self, configs: Mapping[str, str]) -> None:
        """Change configs of the broker from its next start on."""
        self._more |= configs

    def command(self) -> list[str]:
        raise TypeError("a broker of a kind has a command")

    def prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start the process; `wait` waits for it."""
        self.prepare()
        # Configs in the shell's environment are not those of the bench.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")}
        self._began = time.perf_counter()
        with (self.directory / "out").open("ab") as out:
            self._process = subprocess.Popen(
                self.command(), stdout=out, stderr=out, env=environment
            )

    def wait(self) -> None:
        """Wait until the broker answers."""
        assert self._process is not None
        while not self._answers():
            late = time.perf_counter() - self._began > START_TIMEOUT_S
            if self._process.poll() is not None or late:
                raise LoadFailed(f"{self.name} does not answer: {self.last_output()}")
            time.sleep(0.005)
        self.start_s = time.perf_counter() - self._began

    def output(self) -> str:
        """Return the output so far."""
        return (self.directory / "out").read_text(errors="replace")

    def last_output(self) -> str:
        """Return the last part of the output."""
        return self.output()[-3000:]

    def _answers(self) -> bool:
        try:
            with self._connection() as one:
                one.sendall(METADATA)
                head = one.recv(4)
                size = int.from_bytes(head, "big")
                body = b""
                while len(body) < size:
                    got = one.recv(size - len(body))
                    if not got:
                        return False
                    body += got
                return int.from_bytes(body[4:8], "big") > 0  # brokers
        except OSError:
            return False

    def _connection(self) -> socket.socket:
        """Connect to the listener without TLS."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=5)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill9(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: int) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def cpu_s(self) -> float:
        """Return the CPU seconds that the process has used."""
        return process_cpu_s(self.pid)

    def rss_mb(self) -> float:
        """Return the memory of the process in MB."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0


def process_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, its ended threads included, to the nanosecond.

    The times in /proc have steps of 10 ms, an eighth of what a load of 1 GB costs a broker.
    """
    # The clock's number as clock_getcpuclockid(3) returns it.
    return time.clock_gettime((~pid << 3) | 2)


def join(pairs: Mapping[str, str], sign: str) -> str:
    return ",".join(f"{name}{sign}{value}" for name, value in pairs.items())


class Shoal(Broker):
    name = "shoal"

    def command(self) -> list[str]:
        configs = {
            "group.share.min.record.lock.duration.ms": "1000",
            "log.segment.delete.delay.ms": str(DELETE_DELAY_MS),
            **self._more,
        }
        where = [f"--listener={self.address}"]
        if self.security:
            configs["listeners"] = join(self._listeners(), "://")
            configs["listener.security.protocol.map"] = self._protocols()
            where = [*self.security.scram] if not (self.directory / "data").exists() else []
        return [
            *SHOAL,
            "server",
            *where,
            f"--data-dir={self.directory / 'data'}",
            "--log-level=warning",
            *(f"--set={name}={value}" for name, value in configs.items()),
        ]


class Measured(Shoal):
    """A broker with a metrics listener."""

    def __init__(self, directory: Path, configs: Mapping[str, str] | None = None) -> None:
        super().__init__(directory, configs=configs)
        self._metrics = free_port()

    def command(self) -> list[str]:
        return [*super().command(), f"--metrics=127.0.0.1:{self._metrics}"]

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        return metric_at(self._metrics, name)


def metric_at(port: int, name: str) -> float:
    """Return the sum of a metric of the metrics listener on a port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    return sum(sample.value for sample in parse_samples(text, [name]))


class Kafka(Broker):
    name = "kafka"

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"

    def _java(self, *words: str) -> list[str]:
        heap = (f"-Xms{HEAP}", f"-Xmx{HEAP}")
        return ["java", *JVM, *heap, "-cp", f"{LIBRARY}/*", *words]

    def prepare(self) -> None:
        super().prepare()
        if not LIBRARY.is_dir():
            raise SystemExit(f"No Kafka in {LIBRARY}: run `make java`, or set KAFKA_LIB.")
        if not self._properties.exists():
            self._format()

    def _format(self) -> None:
        """Write the settings, and format the data directory."""
        path = self._properties
        controller = free_port()
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": join(
                {**self._listeners(), "CONTROLLER": f"127.0.0.1:{controller}"}, "://"
            ),
            "listener.security.protocol.map": self._protocols(),
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "log.dirs": str(self.directory / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.share.min.record.lock.duration.ms": "1000",
            "log.segment.delete.delay.ms": str(DELETE_DELAY_MS),
            **self._more,
        }
        path.write_text("".join(f"{k}={v}\n" for k, v in lines.items()))
        subprocess.run(
            [
                *self._java("kafka.tools.StorageTool"),
                "format",
                "--standalone",
                "-t",
                "benchmark-of-shoal-00000",
                "-c",
                str(path),
                "--feature",
                "share.version=1",
                *(self.security.scram if self.security else ()),
            ],
            check=True,
            capture_output=True,
        )

    def command(self) -> list[str]:
        return self._java("kafka.Kafka", str(self._properties))
