"""Java clients of other releases than the newest: from 3.3, the oldest that Kafka 4 serves, on.

One program does with each of them what applications do: it creates and changes topics, produces
with each codec, consumes in a group, moves records by transactions, and inspects what it did. The
clients come from Maven Central, with pinned hashes.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.kafka import java_classes, maven

if TYPE_CHECKING:
    from support.brokers.servers import ShoalProcess

pytestmark = pytest.mark.java

#: The release of each client, and the digest of its jar; the newest is among the jars of all tests.
RELEASES = {
    "3.3.2": "29b9b4f35ebeb810b151c4f7b9b6f24329a9be8e6c4764a6eebac3738bee7288",
    "3.9.2": "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    "4.3.1": "52501b7b47510c66f898871adaf6d2968ab7246561d44ced43643a8a587f0b36",
    "4.4.0": "",
}
#: What the clients need beside their own jar.
LIBRARIES = ("lz4-java", "snappy-java", "zstd-jni", "slf4j-api")
DOWNLOADS = Path(__file__).parents[4] / "build" / "java-clients"
TIMEOUT_S = 120


def find_client(release: str) -> Path:
    name = f"kafka-clients-{release}.jar"
    if not RELEASES[release]:
        return java_classes.LIBRARY / name
    artifact = f"org.apache.kafka:kafka-clients:{release}"
    return maven.fetched(artifact, DOWNLOADS, name, RELEASES[release])


@pytest.mark.nightly
@pytest.mark.parametrize("release", RELEASES)
def test_clients_of_a_release(shared_broker: ShoalProcess, release: str) -> None:
    libraries = [one for stem in LIBRARIES for one in java_classes.LIBRARY.glob(f"{stem}-*.jar")]
    words = java_classes.java("ClientRelease.java")
    sources = words[words.index("-cp") + 1].split(":")[-1]
    path = ":".join(str(one) for one in (find_client(release), *libraries, sources))
    topic = f"release-{release.replace('.', '-')}"
    done = subprocess.run(
        ("java", "-Xmx256m", "-cp", path, "ClientRelease", shared_broker.bootstrap, topic),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-10_000:]
    assert done.stdout.splitlines() == [
        "topic 3 3600000",
        *(f"{codec} 300" for codec in ("none", "gzip", "snappy", "lz4", "zstd")),
        "consumed 1500",
        "continued 0",
        "committed 300",
        "offsets 300 {earliest=10, latest=500}",
    ]
