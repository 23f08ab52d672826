"""Measure a newcomer's first steps in a fresh clone with empty caches.

    python tools/first_steps.py                        # make venv, then make demo
    python tools/first_steps.py venv check test
    python tools/first_steps.py demo='.venv/bin/shoal demo --images 1000'
    python tools/first_steps.py --chroot demo          # as root, in a plain Debian
    python tools/first_steps.py --suite=forky venv unit wire model   # with its Python, here 3.14

A step is a target of the Makefile, or NAME=COMMAND for a shell. All run in the clone, one after the
other. The result is a table in Markdown. `--chroot` makes a Debian with nothing but Python, Java
and make (debootstrap, from the first of this machine's apt sources), and runs the steps there; its
installation is a row of its own. `--suite` chooses another release of Debian from the same source.

Downloads are those of the whole machine, so let nothing else run. CPU time counts all processes
that a step leaves behind and that have ended.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import platform
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: What the plain Debian has.
PACKAGES = ("ca-certificates", "default-jre-headless", "make", "python3", "python3-venv")
#: What the plain Debian needs of this machine to reach the network as it does.
NETWORK = (
    *("etc/resolv.conf", "etc/hosts", "etc/pip.conf"),
    *("etc/ssl/certs/ca-certificates.crt", "etc/ssl/certs/java/cacerts"),
)
#: The scripts of debootstrap. A release that is newer than the program is installed like `sid`.
SCRIPTS = Path("/usr/share/debootstrap/scripts")
#: The folder of the clone and the home in the plain Debian.
PLACE = "srv"
PR_SET_CHILD_SUBREAPER = 36


class Row(NamedTuple):
    """What a step took: seconds, and megabytes received and on disk."""

    step: str
    status: int
    wall_s: float
    cpu_s: float
    received_mb: float
    disk_mb: float


class Fresh:
    """A folder with a clone and an empty home, and the way to run commands there."""

    def __init__(self, folder: Path, *, is_debian: bool) -> None:
        self.root = folder / "debian" if is_debian else Path("/")
        self._is_debian = is_debian
        self._place = self.root / PLACE if is_debian else folder
        self.clone = self._place / "shoal"

    def make(self) -> None:
        """Make the clone of the current commit. Raises `CalledProcessError`."""
        (self._place / "home").mkdir(parents=True)
        words = ["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", str(self.clone)]
        subprocess.run(words, check=True)

    def install_debian(self, suite: str) -> list[str]:
        """Return the words that make the plain Debian; an empty suite is that of this machine."""
        listed = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)"]
        mirror, own = subprocess.check_output(listed, text=True).splitlines()[0].split()
        suite = suite or own
        include = ",".join(PACKAGES)
        words = ["debootstrap", "--variant=minbase", f"--include={include}", suite]
        script = [] if (SCRIPTS / suite).exists() else [str(SCRIPTS / "sid")]
        return [*words, str(self.root), mirror, *script]

    def copy_network(self) -> None:
        """Copy what reaches the network from this machine into the Debian."""
        for name in NETWORK:
            if (source := Path("/", name)).exists():
                target = self.root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)

    def words(self, command: str) -> list[str]:
        """Return the words that run a shell's command in the clone."""
        if not self._is_debian:
            return ["sh", "-c", f"cd {shlex.quote(str(self.clone))} && {command}"]
        # The mounts are those of this process alone, and end with it.
        root = shlex.quote(str(self.root))
        mounts = f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev"
        inside = shlex.quote(f"cd /{PLACE}/shoal && {command}")
        return ["unshare", "--mount", "sh", "-c", f"{mounts} && exec chroot {root} sh -c {inside}"]

    def environment(self) -> dict[str, str]:
        """Return variables with a home, and so with caches, in which nothing is."""
        home = f"/{PLACE}/home" if self._is_debian else str(self._place / "home")
        caches = {"PIP_CACHE_DIR", "UV_CACHE_DIR", "XDG_CACHE_HOME", "JAVA_HOME", "VIRTUAL_ENV"}
        kept = {name: value for name, value in os.environ.items() if name not in caches}
        if self._is_debian:
            kept["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
        elif (config := Path.home() / ".config/pip/pip.conf").exists():
            kept["PIP_CONFIG_FILE"] = str(config)
        return {**kept, "HOME": home}


def measure(step: str, words: list[str], environment: dict[str, str], place: Path) -> Row:
    """Run a step to its end; `place` is the folder that it fills."""
    disk_mb, received_mb, cpu_s = measure_size_mb(place), measure_network_mb(), measure_children_s()
    began = time.monotonic()
    status = subprocess.run(words, env=environment, stdout=sys.stderr, check=False).returncode
    wall_s = time.monotonic() - began
    # Processes without a parent are this one's children; wait for those that have ended.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    received_mb = measure_network_mb() - received_mb
    return Row(
        step,
        status,
        wall_s,
        measure_children_s() - cpu_s,
        received_mb,
        measure_size_mb(place) - disk_mb,
    )


def measure_children_s() -> float:
    """Return the CPU seconds of this process's children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure_network_mb() -> float:
    """Return the megabytes that this machine has received, without its loopback."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    counts = (line.split(":") for line in lines)
    return sum(int(count.split()[0]) for name, count in counts if name.strip() != "lo") / 1e6


def measure_size_mb(folder: Path) -> float:
    """Return the megabytes that a folder takes on its disk."""
    if not folder.exists():
        return 0.0
    words = ["du", "--summarize", "--one-file-system", "--block-size=1K", str(folder)]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    return int(said.stdout.split()[0]) * 1024 / 1e6


def format_table(rows: list[Row]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [
        "| step | wall, s | CPU, s | downloaded, MB | on disk, MB |",
        "| --- |" + " ---: |" * 4,
    ]
    for row in rows:
        name = row.step + (f", failed with {row.status}" if row.status else "")
        numbers = (row.wall_s, row.cpu_s, row.received_mb, row.disk_mb)
        lines.append(f"| {name} | " + " | ".join(f"{number:,.0f}" for number in numbers) + " |")
    return "\n".join(lines)


def run_steps(fresh: Fresh, steps: list[str], suite: str | None, folder: Path) -> list[Row]:
    """Run the steps until one fails, in a plain Debian of this suite if it is not None."""
    rows = []
    if suite is not None:
        words = fresh.install_debian(suite)
        rows.append(measure("plain Debian", words, dict(os.environ), folder))
        if rows[0].status:
            return rows
        fresh.copy_network()
    fresh.make()
    for step in steps:
        name, _, command = step.partition("=")
        words = fresh.words(command or f"make {name}")
        print(f"== {name}: {command or f'make {name}'}", file=sys.stderr, flush=True)
        rows.append(measure(command or f"make {name}", words, fresh.environment(), folder))
        if rows[-1].status:
            break
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help="default: venv demo")
    parser.add_argument("--chroot", action="store_true", help="in a plain Debian; needs root")
    parser.add_argument("--suite", metavar="NAME", help="the same, of this release, such as forky")
    arguments = parser.parse_args()
    suite: str | None = arguments.suite or ("" if arguments.chroot else None)
    if suite is not None and (os.geteuid() != 0 or not shutil.which("debootstrap")):
        sys.exit("--chroot needs root and debootstrap: apt-get install debootstrap")
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="first-steps-") as name:
        fresh = Fresh(Path(name), is_debian=suite is not None)
        steps = arguments.steps or ["venv", "demo"]
        rows = run_steps(fresh, steps, suite, Path(name))
    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f} at the end\n"
    )
    print(format_table(rows))
    return max(row.status for row in rows)


if __name__ == "__main__":
    sys.exit(main())
