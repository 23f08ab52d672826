"""A `java` for Spark's JVMs in tests, tuned for short runs. It starts them from an archive of
Spark's classes, if there is one: a driver then needs half of the CPU time until its first batch.

    PYTHONPATH=tests python -m support.spark.spark_java

makes the archive, which takes a quarter of a minute. A test run makes it in the background if it is
missing. All test processes of this checkout share it. The image has its own
(`spark_operator_jobs/class_archive.py`), whose training run this one repeats.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from support.runs import leaks

ROOT = Path(__file__).parents[3]
MADE = ROOT / "build" / "spark-java"
#: Runs a streaming query over a Python source if it is called with `job`.
TRAINING = ROOT / "spark_operator_jobs" / "class_archive.py"
TIMEOUT_S = 300
#: The priority of making the archive: the tests come first.
NICENESS = 10
SCRIPT = """#!/bin/sh
if [ -e {archive} ]; then
  set -- -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable "$@"
fi
exec {java} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData "$@"
"""


@functools.cache
def provide_home() -> Path:
    """Return a JAVA_HOME with this `java`."""
    real = _find_java()
    inputs = (real.resolve(), TRAINING, *sorted((_find_spark() / "jars").glob("*.jar")))
    lines = (f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}\n" for file in inputs)
    home = MADE / hashlib.sha256("".join(lines).encode()).hexdigest()[:12]
    program = home / "bin" / "java"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        part = program.with_suffix(f".{os.getpid()}")
        archive = shlex.quote(str(home / "classes.jsa"))
        part.write_text(SCRIPT.format(archive=archive, java=shlex.quote(str(real))))
        part.chmod(0o755)
        part.rename(program)
    return home


def _find_java() -> Path:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    assert found is not None, "no java; make prerequisites FOR=spark"
    return Path(found)


def _find_spark() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def use() -> None:
    """Let all JVMs of Spark that this process starts be of this `java`, and make their archive in
    the background if it is missing."""
    home = provide_home()
    if not (home / "classes.jsa").exists():
        with leaks.unmarked():
            _processes.append(
                subprocess.Popen(
                    [sys.executable, __file__],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                )
            )
    # The process above finds the real one.
    os.environ["JAVA_HOME"] = str(home)


#: Nobody waits for them.
_processes: list[subprocess.Popen[bytes]] = []


def make() -> None:
    """Make the archive if it is missing. One process does; others wait for it."""
    home = provide_home()
    archive = home / "classes.jsa"
    with (MADE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=MADE) as folder:
                _record(home, Path(folder))
                Path(folder, archive.name).rename(archive)
            for earlier in set(MADE.glob("*/classes.jsa")) - {archive}:
                shutil.rmtree(earlier.parent)


def _record(home: Path, folder: Path) -> None:
    """Run the training with a JVM that writes the archive into the folder when it ends."""
    # Spark's launcher gets no options of the driver, so that only the driver writes it.
    recording = f"-XX:ArchiveClassesAtExit={folder / 'classes.jsa'} -Xlog:disable"
    settings = ("--conf", f"spark.driver.defaultJavaOptions={recording}")
    variables = {
        "JAVA_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": shlex.join(["--master", "local[2]", *settings, "pyspark-shell"]),
        "SPARK_HOME": str(_find_spark()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    # The output ends with the JVM, which is after its Python.
    done = subprocess.run(
        [sys.executable, str(TRAINING), "job"],
        cwd=folder,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout


if __name__ == "__main__":
    os.nice(NICENESS)
    make()
