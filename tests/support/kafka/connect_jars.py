"""The class path of Kafka Connect's workers with the connectors for files and of MirrorMaker.

The workers are the newest. Maven Central, as tests reach it, has the connectors only of the release
before, and these use classes that have moved since. So the clients of that release come last.
"""

from __future__ import annotations

from pathlib import Path

from support.kafka import java_classes, maven

RELEASE = "4.3.1"
DOWNLOADS = Path(__file__).parents[3] / "build" / "connect"
DIGESTS = {
    "connect-file": "e330c491309d8f839f2abd7260c72a3687d6d82ecf2ba0f7699a46d41a46dcac",
    "connect-mirror": "0d091c7ba172827dc42ed09fdf4390876a90ab627fd8d2bb002016f9785617e1",
    "connect-mirror-client": "c11ebb023021dccb8f18c6b57019b9dbe7c74e0b9495196a895a5d40b9faf1a8",
    "kafka-clients": "52501b7b47510c66f898871adaf6d2968ab7246561d44ced43643a8a587f0b36",
}


def find_class_path(*connectors: str) -> str:
    """Fetch the connectors; return the class path of a worker that has them."""
    paths = [f"{java_classes.LIBRARY}/*"]
    for name in (*connectors, "kafka-clients"):
        artifact, file = f"org.apache.kafka:{name}:{RELEASE}", f"{name}-{RELEASE}.jar"
        paths.append(str(maven.fetched(artifact, DOWNLOADS, file, DIGESTS[name])))
    return ":".join(paths)
