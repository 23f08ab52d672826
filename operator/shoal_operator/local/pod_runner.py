"""One pod as processes, as the kubelet runs its containers: start, probes, back-off, end.

A container that ends starts again, unless it is of a Job: at once, then after 10 s, 20 s and so on,
up to five minutes, with the reason CrashLoopBackOff in between. The pod's status is what the
operator reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal_operator.kube.kube import format_now
from shoal_operator.local.addresses import HOST
from shoal_operator.local.containers import ContainerFiles, NotRunnable
from shoal_operator.local.processes import ProcessTable, send_signal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shoal_operator.model.names import Manifest

#: The kubelet's back-off: the second restart waits for this long, and each further one twice as
#: long. A container that ran for `STEADY_SECONDS` begins anew.
BACKOFF_SECONDS, BACKOFF_SECONDS_MAX, STEADY_SECONDS = 10.0, 300.0, 600.0
#: Seconds between looks at a container that has not been ready, and at a file that is missing.
STARTING_SECONDS, MISSING_SECONDS = 0.05, 0.5
#: How long a container without a readiness probe runs until it counts as ready: at first, and after
#: it has ended unasked. One that crashes at once must not be ready in between (ADR 174).
SETTLED_SECONDS, RESTARTED_SECONDS = 2.0, 10.0
PROBE_SECONDS = 3.0
GRACE_SECONDS = 30
#: What the kubelet keeps of a log as the message of a container that ended.
_MESSAGE_LINES, _MESSAGE_BYTES = 80, 2048


@dataclass
class _Container:
    """A container and its process."""

    spec: Manifest
    state: Manifest = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last: Manifest = field(default_factory=dict)
    ready: bool = False
    started: bool = False
    restarts: int = 0
    process: asyncio.subprocess.Process | None = None
    #: What removes what a killed process leaves.
    cleanup: tuple[str, ...] = ()
    #: Whether it has ended and does not start again.
    is_over: bool = False


class PodRunner:
    """Runs the containers of a pod until `stop`. `publish` takes the pod's status, and `warn` a
    sentence about a container that ended unasked."""

    def __init__(
        self,
        pod: Manifest,
        files: ContainerFiles,
        table: ProcessTable,
        logs: Path,
        publish: Callable[[Manifest], None],
        warn: Callable[[str], None],
    ) -> None:
        self.pod, self.files, self._table = pod, files, table
        self._logs, self._publish_status, self._warn = logs, publish, warn
        self._containers = [_Container(spec) for spec in pod["spec"]["containers"]]
        self._stopping = asyncio.Event()
        self._ready_since = format_now()
        self._was_ready = False
        name = pod["metadata"]["name"]
        self._task = asyncio.create_task(self._run(), name=f"pod {name}")
        self.is_stopping = False

    def begin_stop(self) -> asyncio.Task[None]:
        """Stop the containers; the task ends when all processes have."""
        self.is_stopping = True
        self._stopping.set()
        return self._task

    async def _run(self) -> None:
        self._publish()
        await asyncio.gather(*(self._run_container(c) for c in self._containers))

    # -- a container

    async def _run_container(self, container: _Container) -> None:
        while not self._stopping.is_set():
            process = await self._start(container)
            if process is None:
                continue
            began = time.monotonic()
            probing = asyncio.create_task(self._probe(container))
            code = await self._wait(container, process)
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
            self._table.forget(process.pid)
            container.process, container.ready, container.started = None, False, False
            if self._stopping.is_set():
                break
            container.last = {"terminated": self._describe_end(container, code)}
            if self._is_last_run(code):
                container.state, container.is_over = container.last, True
                if code:
                    self._report_end(container)
                self._publish()
                return
            await self._back_off(container, time.monotonic() - began)
        container.ready = False

    def _is_last_run(self, code: int) -> bool:
        """Return whether a container that ended with this code stays so: it is of a Job."""
        policy = self.pod["spec"].get("restartPolicy", "Always")
        return policy == "Never" or (policy == "OnFailure" and code == 0)

    async def _start(self, container: _Container) -> asyncio.subprocess.Process | None:
        """Return the process of a container; None if it could not start, after a pause."""
        name, meta = container.spec["name"], self.pod["metadata"]
        try:
            self.files.write_volumes()
            launch = self.files.build_launch(container.spec)
            process = await self._table.start(
                launch,
                self._get_log(container),
                f"{meta['namespace']}/{meta['name']}/{name}",
                is_broker=self.files.is_broker,
            )
        except NotRunnable as error:
            await self._report_waiting(container, error.reason, str(error), MISSING_SECONDS)
            return None
        except FileNotFoundError as error:
            text = f'exec: "{error.filename}": executable file not found in $PATH'
            await self._report_waiting(container, "RunContainerError", text, BACKOFF_SECONDS)
            return None
        except OSError as error:
            await self._report_waiting(container, "RunContainerError", f"{error}", BACKOFF_SECONDS)
            return None
        container.process, container.cleanup = process, launch.cleanup
        container.state = {"running": {"startedAt": format_now()}}
        container.started = "startupProbe" not in container.spec
        container.ready = False
        self._publish()
        return process

    async def _report_waiting(
        self, container: _Container, reason: str, message: str, seconds: float
    ) -> None:
        container.state = {"waiting": {"reason": reason, "message": message}}
        self._publish()
        await self._pause(seconds)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _wait(self, container: _Container, process: asyncio.subprocess.Process) -> int:
        """Wait until a process ends; end it when the pod stops. Return its exit code."""
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ended.done():
            await self._run_pre_stop(container)
            send_signal(process.pid, signal.SIGTERM)
            grace = self.pod["spec"].get("terminationGracePeriodSeconds", GRACE_SECONDS)
            await asyncio.wait((ended,), timeout=grace)
        # What the container left in its group ends with it.
        send_signal(process.pid, signal.SIGKILL)
        code = await ended
        if container.cleanup:
            with contextlib.suppress(OSError):
                removing = await _start_quietly(*container.cleanup)
                await removing.wait()
        return code if code >= 0 else 128 - code

    async def _run_pre_stop(self, container: _Container) -> None:
        hook = container.spec.get("lifecycle", {}).get("preStop", {}).get("exec")
        if not hook:
            return
        with contextlib.suppress(NotRunnable, OSError):
            launch = self.files.build_exec(container.spec, hook["command"])
            process = await self._table.start(
                launch, self._get_log(container), "preStop", is_broker=False
            )
            await process.wait()
            self._table.forget(process.pid)

    def _describe_end(self, container: _Container, code: int) -> Manifest:
        ended: Manifest = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "finishedAt": format_now(),
        }
        if container.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError" and code:
            ended["message"] = _read_end(self._get_log(container))
        return ended

    async def _back_off(self, container: _Container, ran_seconds: float) -> None:
        if ran_seconds > STEADY_SECONDS:
            container.restarts = 0
        container.restarts += 1
        seconds = BACKOFF_SECONDS * 2 ** (container.restarts - 2) if container.restarts > 1 else 0
        seconds = min(seconds, BACKOFF_SECONDS_MAX)
        pause = f"in {seconds:.0f} s" if seconds else "at once"
        self._report_end(container, f"; it is started again {pause}")
        if not seconds:
            container.state = container.last
            self._publish()
            return
        name = self.pod["metadata"]["name"]
        text = f"back-off {seconds:.0f}s restarting failed container={container.spec['name']} "
        await self._report_waiting(container, "CrashLoopBackOff", f"{text}pod={name}", seconds)

    def _report_end(self, container: _Container, remedy: str = "") -> None:
        code, name = container.last["terminated"]["exitCode"], self.pod["metadata"]["name"]
        text = f"container {container.spec['name']} of pod {name} ended with exit code {code}"
        self._warn(f"{text}{remedy}")

    def _get_log(self, container: _Container) -> Path:
        meta = self.pod["metadata"]
        return self._logs / meta["namespace"] / meta["name"] / f"{container.spec['name']}.log"

    # -- probes

    async def _probe(self, container: _Container) -> None:
        """Keep `started` and `ready` as the probes say, until cancelled."""
        spec = container.spec
        failures = 0
        if probe := spec.get("startupProbe"):
            while not await self._succeeds(spec, probe):
                await asyncio.sleep(STARTING_SECONDS)
            container.started = True
        readiness = spec.get("readinessProbe")
        if readiness is None:
            await asyncio.sleep(RESTARTED_SECONDS if container.restarts else SETTLED_SECONDS)
            container.ready = True
            self._publish()
            return
        while True:
            succeeded = await self._succeeds(spec, readiness)
            failures = 0 if succeeded else failures + 1
            ready = succeeded or (
                container.ready and failures < readiness.get("failureThreshold", 3)
            )
            if ready != container.ready:
                container.ready = ready
                self._publish()
            pause = readiness.get("periodSeconds", 10) if self._was_ready else STARTING_SECONDS
            await asyncio.sleep(pause)

    async def _succeeds(self, spec: Manifest, probe: Manifest) -> bool:
        try:
            async with asyncio.timeout(max(PROBE_SECONDS, probe.get("timeoutSeconds", 1))):
                if get := probe.get("httpGet"):
                    port = self.files.resolve_port(spec, get["port"])
                    return await _get_status(port, get) < 400
                if command := probe.get("exec"):
                    return await self._run_probe(spec, command["command"])
                if tcp := probe.get("tcpSocket"):
                    port = self.files.resolve_port(spec, tcp["port"])
                    _, writer = await asyncio.open_connection(HOST, port)
                    writer.close()
        except (OSError, TimeoutError, ValueError, NotRunnable):
            return False
        return True

    async def _run_probe(self, spec: Manifest, command: list[str]) -> bool:
        launch = self.files.build_exec(spec, command)
        process = await _start_quietly(
            *launch.words, env=launch.env, cwd=launch.folder, start_new_session=True
        )
        try:
            return await process.wait() == 0
        finally:
            if process.returncode is None:  # It takes too long.
                send_signal(process.pid, signal.SIGKILL)

    # -- the status

    def _get_phase(self) -> str:
        if all(container.is_over for container in self._containers):
            ends = (container.last["terminated"]["exitCode"] for container in self._containers)
            return "Failed" if any(ends) else "Succeeded"
        running = any("running" in c.state or c.last for c in self._containers)
        return "Running" if running else "Pending"

    def _publish(self) -> None:
        ready = all(container.ready for container in self._containers)
        if ready != self._was_ready:
            self._was_ready, self._ready_since = ready, format_now()
        condition = {"status": str(ready), "lastTransitionTime": self._ready_since}
        statuses = []
        for container in self._containers:
            status = {
                "name": container.spec["name"],
                "image": container.spec.get("image", ""),
                "ready": container.ready,
                "started": container.started,
                "restartCount": container.restarts,
                "state": container.state,
            }
            if container.last:
                status["lastState"] = container.last
            statuses.append(status)
        self._publish_status(
            {
                "phase": self._get_phase(),
                "hostIP": HOST,
                "conditions": [{"type": "Ready", **condition}],
                "containerStatuses": statuses,
            }
        )


async def _start_quietly(*words: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a process that nobody hears. Raises `OSError`."""
    quiet = asyncio.subprocess.DEVNULL
    return await asyncio.create_subprocess_exec(
        *words, stdin=quiet, stdout=quiet, stderr=quiet, **options
    )


async def _get_status(port: int, get: Manifest) -> int:
    """Return the HTTP status of a path of this machine. Raises `OSError` and `ValueError`."""
    context = None
    if get.get("scheme") == "HTTPS":
        # The kubelet does not check certificates either.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
    try:
        request = (
            f"GET {get.get('path', '/')} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n"
        )
        writer.write(request.encode())
        line = await reader.readline()
        return int(line.split()[1])
    except IndexError:
        raise ValueError("no HTTP answer") from None
    finally:
        writer.close()


def _read_end(log: Path) -> str:
    """Return the end of a log, as much as the kubelet keeps."""
    with contextlib.suppress(OSError), log.open("rb") as opened:
        opened.seek(0, 2)
        opened.seek(max(0, opened.tell() - _MESSAGE_BYTES))
        lines = opened.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_MESSAGE_LINES:])
    return ""
