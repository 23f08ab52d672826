"""Archives of the classes that a Kafka server and Kafka's clients load, for `java_classes`.

    PYTHONPATH=tests python -m support.kafka.class_archives

makes them, which takes a quarter of a minute and is needed once after `make java`. A test run makes
them in the background if they are missing, and its own JVMs may start without them.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from support.kafka import java_classes
from support.kafka.java_classes import MADE, SOURCES, java
from support.kafka.kafkas import KafkaProcess

#: A client of each kind, to load its classes.
SOURCE = SOURCES / "ClientKinds.java"
TIMEOUT_S = 180


def make() -> None:
    """Make the archives that are missing. One process does; others wait for it."""
    wanted = {java_classes.server_archive(), java_classes.client_archive()}
    with java_classes.lock("archives"):
        if all(archive.exists() for archive in wanted):
            return
        with tempfile.TemporaryDirectory(dir=MADE) as folder:
            _make(Path(folder))
        for earlier in set(MADE.glob("*.jsa")) - wanted:
            earlier.unlink()


def _make(folder: Path) -> None:
    server, clients = folder / "server.jsa", folder / "clients.jsa"
    kafka = KafkaProcess(folder / "node", jvm_flags=_recording(server)).start()
    try:
        done = subprocess.run(
            java(*_recording(clients), str(SOURCE), kafka.bootstrap, str(folder / "state")),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        kafka.stop()
    clients.rename(java_classes.client_archive())
    server.rename(java_classes.server_archive())


def _recording(archive: Path) -> tuple[str, ...]:
    return ("-Xlog:disable", f"{java_classes.RECORD}={archive}")


if __name__ == "__main__":
    make()
