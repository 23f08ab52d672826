"""A Docker for Celery's smoke tests: its containers are processes of this machine.

The tests (`t/smoke` in Celery's source) start their workers, brokers and results by pytest-celery,
which asks the fixture `docker_client` for containers. `Daemon` is that fixture here, with the few
calls that it gets. The image decides which program runs: a worker of Celery, Redis, or Shoal. What
needs another image, or a tool of RabbitMQ, is skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: The image of Shoal, and the port that each of its containers publishes.
SHOAL_IMAGE, SHOAL_PORT = "shoal", "9092/tcp"
#: Celery's tests expect that a worker runs three tasks at once, as it does where CI runs them.
CORES = 4
#: What a call of Docker takes, in seconds. Two equal signals at once are one for a process.
SIGNAL_S = 0.5
#: What a test writes in its container, and finds nowhere else.
MARKER = Path(tempfile.gettempdir(), "kill_child_process_once")
#: A worker imports this when it starts. Billiard counts the cores by `sysconf`.
_SITE = f"""
import os

real = os.sysconf
os.sysconf = lambda name: {CORES} if name == "SC_NPROCESSORS_ONLN" else real(name)
os.cpu_count = lambda: {CORES}
"""


class Named:
    """An image, a network, or a volume, which is a folder."""

    def __init__(self, name: str, root: Path) -> None:
        self.id = self.name = name
        self._folder = root / name

    def remove(self, *_: Any) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class Seeding:
    """A container that fills a volume with files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put_archive(self, _path: str, archive: Any) -> None:
        with tarfile.open(fileobj=archive) as files:
            files.extractall(self._folder, filter="data")

    def remove(self, **_: Any) -> None:
        pass


class Container:
    """A program, which leads a session, so that its children end with it."""

    def __init__(
        self,
        root: Path,
        image: str,
        command: Iterable[str | None],
        environment: Mapping[str, Any],
        port: str,
        folder: Path | None,
    ) -> None:
        """`port` is the one that the image publishes, such as `6379/tcp`, or empty. `folder` is
        the volume of a worker."""
        self.id = uuid.uuid4().hex
        self.name = f"{Path(image).name}-{self.id[:6]}"
        self._home = root / self.id
        self._home.mkdir()
        (self._home / "sitecustomize.py").write_text(_SITE)
        self._folder = folder or self._home
        self._log = self._home / "log"
        self._image_port, self._port = port, _choose_port()
        hostname = f"127.0.0.1:{self._port}" if port else self.id[:12]
        self._environment = self._make_environment(environment)
        ports = {port: [{"HostIp": "127.0.0.1", "HostPort": str(self._port)}]} if port else {}
        self.attrs: dict[str, Any] = {
            "Config": {"Hostname": hostname, "Env": [], "Labels": {}},
            "HostConfig": {"PortBindings": {}},
            "NetworkSettings": {"Networks": {}, "Ports": ports},
            "State": {},
        }
        self._words = self._make_words(image, [word or "" for word in command])
        self._start()

    def _make_words(self, image: str, words: list[str]) -> list[str]:
        if "redis" in image:
            # A path is that of a file of settings in the image.
            options = [word for word in words if not word.startswith("/")]
            return [*options, "--port", str(self._port), "--bind", "127.0.0.1"]
        if image == SHOAL_IMAGE:
            arguments = (f"--listener=127.0.0.1:{self._port}", f"--data-dir={self._home / 'data'}")
            return [sys.executable, "-m", "shoal.cli", "server", *arguments]
        if "worker" in image:
            return [word.replace("%h", self.id[:12]) for word in words]
        pytest.skip(f"there is no container of {image}")

    def _make_environment(self, environment: Mapping[str, Any]) -> dict[str, str]:
        variables = {**os.environ, **{name: str(value) for name, value in environment.items()}}
        host, _, port = str(environment.get("REDIS_HOST", "")).partition(":")
        if port:
            variables |= {"REDIS_HOST": host, "REDIS_PORT": port}
        path = (str(self._folder), str(self._home), str(Path.cwd()), os.environ["PYTHONPATH"])
        programs = (str(Path(sys.executable).parent), os.environ["PATH"])
        variables["PATH"] = os.pathsep.join(programs)
        return variables | {"PYTHONPATH": os.pathsep.join(path)}

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def status(self) -> str:
        """Docker's word for the state."""
        code = self._process.poll()
        if code is None:
            return "running"
        self.attrs["State"]["ExitCode"] = code if code >= 0 else 128 - code
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return "exited"

    def reload(self) -> None:
        """Update `attrs`."""
        assert self.status

    def logs(self, **_: Any) -> bytes:
        return self._log.read_bytes()

    def kill(self, name: str | int | None = None) -> None:
        """Send a signal to the program, SIGKILL if none is named."""
        number = signal.Signals[name] if isinstance(name, str) else name or signal.SIGKILL
        self._process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(None if number == signal.SIGKILL else SIGNAL_S)
        self.reload()

    def restart(self, timeout: float = 10) -> None:
        """Stop the program, kill it after the timeout, and start it with its data and port."""
        self.kill("SIGTERM")
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
        self.reload()
        self._start()

    def remove(self, **_: Any) -> None:
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def exec_run(self, command: str | list[str], **_: Any) -> tuple[int, bytes]:
        """Run a program beside it. Return the exit code and the output."""
        words = shlex.split(command) if isinstance(command, str) else command
        if words[:2] == ["cat", "/proc/net/tcp"]:
            return 0, self._list_sockets().encode()
        if words[0] == "rabbitmqctl":
            pytest.skip("there is no rabbitmqctl")
        done = subprocess.run(
            words, cwd=self._folder, env=self._environment, capture_output=True, check=False
        )
        if done.returncode == 0 and "get_running_processes_info" in words[-1]:
            processes = [info for info in json.loads(done.stdout) if self._has(info["pid"])]
            return 0, json.dumps(processes).encode()
        return done.returncode, done.stdout + done.stderr

    def _has(self, pid: int) -> bool:
        try:
            return os.getsid(pid) == self._process.pid
        except ProcessLookupError:
            return False

    def _list_sockets(self) -> str:
        """Return a line of /proc/net/tcp with the image's port, once the program listens."""
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", self._port)):
                return ""
        return f"0: 0100007F:{int(self._image_port.partition('/')[0]):04X} 00000000:0000 0A"


class Daemon:
    """What `docker.from_env()` returns: images, networks, volumes and containers in one."""

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="celery-containers-"))
        MARKER.unlink(missing_ok=True)
        self.images = self.networks = self.volumes = self.containers = self

    def close(self) -> None:
        """Remove the folders of all containers."""
        shutil.rmtree(self._root, ignore_errors=True)

    def pull(self, repository: str, **_: Any) -> Named:
        return Named(repository, self._root)

    def build(self, tag: str = "", **_: Any) -> tuple[Named, list[str]]:
        return Named(tag, self._root), []

    def create(self, name: str = "", *, volumes: Any = None, **_: Any) -> Named | Seeding:
        """Create a network, a volume, or the container that fills a volume."""
        if volumes is not None:
            (volume,) = volumes
            return Seeding(self._root / volume)
        (self._root / name).mkdir(exist_ok=True)
        return Named(name, self._root)

    def run(
        self,
        image: str,
        *,
        command: Any = None,
        environment: Any = None,
        volumes: Any = None,
        ports: Any = None,
        **_: Any,
    ) -> Container:
        """Start a container."""
        bound = {volume["bind"]: name for name, volume in (volumes or {}).items()}
        folder = self._root / bound["/app"] if "/app" in bound else None
        port = next(iter(ports or ()), "")
        return Container(self._root, image, command or (), environment or {}, port, folder)


def _choose_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
