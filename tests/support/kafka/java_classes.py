"""What is made from Kafka's jars and our Java sources once, so that each JVM starts in half the
time: a jar of the compiled sources of `tests/compat`, and archives of loaded classes.

All test processes of this checkout share them. They lie beside the jars of `make java`, and their
names have a hash of what they were made from. `class_archives` makes the archives.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

COMPAT = Path(__file__).parents[2] / "compat"
SOURCES, LIBRARY = COMPAT / "java", COMPAT / "lib"
MADE = LIBRARY / "made"
COMPILER = "com.sun.tools.javac.Main"
#: The class of a Kafka server. It has an archive of its own.
SERVER = "kafka.Kafka"
#: An option that makes an archive when the JVM ends.
RECORD = "-XX:ArchiveClassesAtExit"
COMPILE_TIMEOUT_S = 180


def java(*words: str, heap: str = "256m") -> list[str]:
    """Return a command line, tuned for short runs, that starts a class of Kafka's or a source file
    of `tests/compat`. Options of the JVM may be before its name."""
    at = next(n for n, word in enumerate(words) if not word.startswith("-"))
    path, main = _find(words[at])
    is_recording = any(word.startswith(RECORD) for word in words[:at])
    return [
        "java",
        f"-Xmx{heap}",
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-XX:-UsePerfData",
        "-Dlog4j2.level=OFF",
        *([] if is_recording else _archived(main)),
        "-cp",
        path,
        *words[:at],
        main,
        *words[at + 1 :],
    ]


def _find(name: str) -> tuple[str, str]:
    """Return the class path and the main class of a class of Kafka's, or of our source file."""
    # Each class path begins with the one of its archive.
    path = f"{LIBRARY}/*" if name == SERVER else f"{LIBRARY}/*:{find_compiled()}"
    return path, Path(name).stem if name.endswith(".java") else name


def _archived(main: str) -> list[str]:
    """Return the options that let this class start from an archive, if there is one."""
    archive = server_archive() if main == SERVER else client_archive()
    # If the archive does not fit, the JVM ignores it, and would say so on standard output.
    return ["-Xlog:disable", f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


def server_archive() -> Path:
    return MADE / f"server-{_hash_of_java()}.jsa"


def client_archive() -> Path:
    return MADE / f"clients-{_hash_of_sources()}.jsa"


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Let one process at a time make something."""
    MADE.mkdir(exist_ok=True)
    with (MADE / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@functools.cache
def find_compiled() -> Path:
    """Return the jar of all sources in `tests/compat`, and make it first if there is none."""
    jar = MADE / f"sources-{_hash_of_sources()}.jar"
    with lock("sources"):
        if not jar.exists():
            with tempfile.TemporaryDirectory(dir=MADE) as folder:
                _compile(_sources(), Path(folder), jar)
    return jar


def _compile(sources: Iterable[Path], folder: Path, jar: Path) -> None:
    path = ":".join(str(one) for one in sorted(LIBRARY.glob("*.jar")))
    # A JRE has the compiler without the command `javac`.
    words = ["java", "-XX:TieredStopAtLevel=1", "-m", f"jdk.compiler/{COMPILER}", "-cp", path]
    done = subprocess.run(
        [*words, "-d", str(folder / "classes"), *map(str, sources)],
        capture_output=True,
        text=True,
        timeout=COMPILE_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"the sources in {SOURCES} do not compile:\n{done.stderr}"
    part = folder / "jar"
    with zipfile.ZipFile(part, "w") as archive:
        for file in sorted((folder / "classes").iterdir()):
            archive.write(file, file.name)
    part.rename(jar)


def _sources() -> list[Path]:
    return sorted(SOURCES.glob("*.java"))


@functools.cache
def _hash_of_java() -> str:
    """Return a hash of the JVM and Kafka's jars, by their names, sizes and times."""
    files = (Path(shutil.which("java") or "java").resolve(), *sorted(LIBRARY.glob("*.jar")))
    lines = (f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:12]


@functools.cache
def _hash_of_sources() -> str:
    whole = hashlib.sha256(_hash_of_java().encode())
    for source in _sources():
        whole.update(source.read_bytes())
    return whole.hexdigest()[:12]
