"""`kubectl shoal`: the `shoal` command for a QueueCluster, from outside of Kubernetes.

    kubectl shoal [-n NAMESPACE] [--context NAME] [--kubeconfig FILE] [--user QUEUEUSER]
                  QUEUECLUSTER COMMAND...

kubectl finds this program by its name. It reads the QueueCluster, and with --user the Secret of a
QueueUser, by kubectl and thus with your rights in Kubernetes. Brokers advertise names that only
pods can resolve: for each that a client connects to, it runs `kubectl port-forward` to the pod of
that broker. TLS still checks the names in the brokers' certificates.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

#: Where the properties in the Secret of a QueueUser expect its files.
MOUNT = "/etc/shoal/user/"
#: The names of Services and pods in Kubernetes: `main-broker-0.main-brokers.shop.svc`.
_IN_CLUSTER = re.compile(
    r"(?P<first>[a-z0-9-]+)(\.(?P<brokers>[a-z0-9-]+))?\.(?P<ns>[a-z0-9-]+)\.svc(\..+)?"
)
_FORWARDED = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")
#: Variables that would name another cluster.
_RIVALS = ("SHOAL_BOOTSTRAP_SERVERS", "SHOAL_BOOTSTRAP", "SHOAL_COMMAND_CONFIG", "SHOAL_PROFILE")


class KubectlError(Exception):
    """kubectl is missing, or refuses a request; the message is its own."""


class Kubectl:
    """kubectl with the flags that choose a Kubernetes cluster."""

    def __init__(self, flags: list[str]) -> None:
        self._flags = flags

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any]:
        """Return an object. Raises `KubectlError`."""
        namespace_flags = [f"--namespace={namespace}"] if namespace else []
        command = ["kubectl", *self._flags, *namespace_flags, "get", kind, name, "--output=json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise KubectlError("kubectl is not in your PATH. Install it") from None
        if done.returncode:
            raise KubectlError(done.stderr.strip().rstrip("."))
        resource: dict[str, Any] = json.loads(done.stdout)
        return resource

    def start_forward(self, target: str, namespace: str, port: int) -> subprocess.Popen[str]:
        """Start to forward a port of this machine, which kubectl chooses, to a pod or Service."""
        command = ["kubectl", *self._flags, f"--namespace={namespace}", "port-forward", target]
        return subprocess.Popen(
            [*command, f":{port}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )


class Forwards:
    """The forwarded ports of one run, by host and port of the brokers; `close` ends them."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self._started: dict[tuple[str, int], tuple[subprocess.Popen[str], int]] = {}
        self._gate = threading.Lock()

    def find_port(self, host: str, port: int) -> int | None:
        """Return the port of this machine that leads there, None for a host outside of Kubernetes.

        Blocks until kubectl forwards it. Raises `OSError` if it does not.
        """
        name = _IN_CLUSTER.fullmatch(host)
        if name is None:
            return None
        with self._gate:
            forward = self._started.get((host, port))
            if forward is not None and forward[0].poll() is None:
                return forward[1]
            kind = "pod" if name["brokers"] else "service"
            target = f"{kind}/{name['first']}"
            process = self._kubectl.start_forward(target, name["ns"], port)
            local_port = _read_port(process)
            self._started[host, port] = (process, local_port)
            return local_port

    def close(self) -> None:
        """End all forwards."""
        for process, _ in self._started.values():
            process.terminate()
            process.communicate()


def _read_port(process: subprocess.Popen[str]) -> int:
    """Return the port that kubectl has chosen, and read on, as kubectl reports each connection.
    Raises `OSError`."""
    assert process.stdout is not None
    match = _FORWARDED.match(process.stdout.readline())
    if match is None:
        _, errors = process.communicate()
        raise OSError(f"kubectl port-forward failed: {errors.strip()}")
    threading.Thread(target=process.stdout.read, daemon=True).start()
    return int(match[1])


class ForwardingLoop(asyncio.SelectorEventLoop):
    """An event loop whose connections to brokers in Kubernetes go through `forwards`."""

    forwards: Forwards

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        """Connect as asyncio does; the name for TLS stays the broker's."""
        factory, host, port, *more = args
        local = await self.run_in_executor(None, self.forwards.find_port, host, port)
        if local is not None:
            host, port = "127.0.0.1", local
        return await super().create_connection(factory, host, port, *more, **options)


def main() -> None:
    """Run the console script."""
    options = _parse(sys.argv[1:])
    chosen = {"context": options.context, "kubeconfig": options.kubeconfig}
    kubectl = Kubectl([f"--{name}={value}" for name, value in chosen.items() if value])
    forwards = ForwardingLoop.forwards = Forwards(kubectl)
    with tempfile.TemporaryDirectory(prefix="kubectl-shoal-") as folder:
        try:
            os.environ |= _find_cluster(kubectl, options, Path(folder))
            _run_shoal(options.command)
        except KubectlError as error:
            sys.exit(f"kubectl shoal: {error}.")
        finally:
            forwards.close()


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "kubectl shoal", description="The shoal command for a QueueCluster in Kubernetes."
    )
    parser.add_argument("-n", "--namespace", default="", help="default: that of the context")
    parser.add_argument("--context", help="a context of your kubeconfig")
    parser.add_argument("--kubeconfig", metavar="FILE")
    parser.add_argument("--user", help="the QueueUser whose Secret you log in with")
    parser.add_argument("cluster", metavar="QUEUECLUSTER")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="a command of shoal with its options"
    )
    return parser.parse_args(words)


def _find_cluster(kubectl: Kubectl, options: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Return the variables that name the cluster to `shoal`; put the files of a Secret into
    `folder`. Raises `KubectlError`."""
    for name in _RIVALS:
        os.environ.pop(name, None)
    cluster = kubectl.get("queuecluster", options.cluster, options.namespace)
    if not options.user:
        servers = cluster.get("status", {}).get("bootstrapServers", "")
        if not servers:
            raise KubectlError(f"QueueCluster {options.cluster} has no bootstrapServers yet")
        return {"SHOAL_BOOTSTRAP_SERVERS": servers}
    namespace = cluster["metadata"]["namespace"]
    user = kubectl.get("queueuser", options.user, namespace)
    if user["spec"]["cluster"] != options.cluster:
        raise KubectlError(
            f"QueueUser {options.user} belongs to QueueCluster {user['spec']['cluster']}"
        )
    secret = kubectl.get("secret", options.user, namespace)
    for name, content in secret.get("data", {}).items():
        # The folder is readable to its owner only.
        (folder / name).write_bytes(base64.b64decode(content))
    properties = folder / "client.properties"
    if not properties.exists():
        raise KubectlError(f"Secret {options.user} has no client.properties")
    properties.write_text(properties.read_text().replace(MOUNT, f"{folder}/"))
    return {"SHOAL_COMMAND_CONFIG": str(properties)}


def _run_shoal(command: list[str]) -> None:
    """Run a command of `shoal`, with our event loop in place of asyncio's."""
    from shoal.cli import main as shoal

    with warnings.catch_warnings():
        # Python 3.14 warns that policies will go, and has no other way for `asyncio.run`.
        warnings.simplefilter("ignore", DeprecationWarning)
        policy = asyncio.DefaultEventLoopPolicy()
        policy._loop_factory = ForwardingLoop  # type: ignore[attr-defined]  # noqa: SLF001
        asyncio.set_event_loop_policy(policy)
    sys.argv = ["shoal", *command]
    shoal.main()


if __name__ == "__main__":
    main()
