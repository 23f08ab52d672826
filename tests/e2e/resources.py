"""One namespace as a user sees it: `kubectl`, its objects, and a client in a pod.

Tests use this to talk to the product, and never the operator's own code.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import yaml
from e2e.cluster import images
from support.runs.conditions import eventually

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping
    from pathlib import Path

    from e2e.cluster.backend import Cluster

Manifest = dict[str, Any]
PAUSE = "import signal; signal.pause()"
#: Where client.properties in the Secret of a user expects the Secret to be mounted.
MOUNT = "/etc/shoal/user"
#: Permissions for everything, in `spec.acls` of a QueueUser.
EVERYTHING: list[Manifest] = [
    {"resource": {"type": "cluster"}, "operations": ["all"]},
    *(
        {"resource": {"type": kind, "name": "*"}, "operations": ["all"]}
        for kind in ("topic", "group", "transactionalId")
    ),
]


class Resources:
    """A namespace of the test cluster."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def kubectl(
        self, *argv: str, stdin_text: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        where = f"--namespace={self.namespace}"
        # Words after `--` are the command of a pod.
        return self.cluster.kubectl(argv[0], where, *argv[1:], stdin_text=stdin_text, check=check)

    def apply(self, *manifests: Manifest) -> None:
        self.kubectl("apply", "--filename=-", stdin_text=yaml.safe_dump_all(manifests))

    def refusal(self, manifest: Manifest) -> str:
        """Return the API server's error for a manifest that it must refuse."""
        applied = self.kubectl(
            "apply", "--filename=-", stdin_text=yaml.safe_dump(manifest), check=False
        )
        assert applied.returncode != 0, f"the API server accepted {manifest}"
        return applied.stderr

    def patch(self, what: str, patch: Mapping[str, Any]) -> None:
        self.kubectl("patch", what, "--type=merge", f"--patch={json.dumps(patch)}")

    def get(self, what: str) -> Manifest:
        return json.loads(self.kubectl("get", what, "--output=json").stdout)

    def find(self, what: str) -> Manifest | None:
        """Return the object, or None if it does not exist."""
        found = self.kubectl("get", what, "--output=json", "--ignore-not-found").stdout
        return json.loads(found) if found else None

    def find_all(self, kind: str, selector: str = "") -> list[Manifest]:
        found = self.kubectl("get", kind, f"--selector={selector}", "--output=json")
        return json.loads(found.stdout)["items"]

    def status(self, what: str) -> Manifest:
        return self.get(what).get("status", {})

    def condition(self, what: str, kind: str = "Ready") -> Manifest:
        """Return a condition of the object's present generation, or an empty one."""
        found = self.get(what)
        for condition in found.get("status", {}).get("conditions", []):
            current = condition.get("observedGeneration") == found["metadata"]["generation"]
            if condition["type"] == kind and current:
                return condition
        return {"type": kind, "status": "Unknown", "reason": "", "message": ""}

    def wait(self, *whats: str, timeout_s: float = 60) -> None:
        """Wait until all are Ready, each in its present generation. A cluster that rolls may be
        Ready; its roll is waited for."""
        for what in whats:

            def ready(what: str = what) -> bool:
                condition = self.condition(what)
                assert condition["status"] == "True", f"{what}: {condition}"
                assert condition["reason"] not in ("Rolling", "Restarting"), f"{what}: {condition}"
                return True

            eventually(ready, timeout_s=timeout_s)

    def wait_reason(self, what: str, reason: str, timeout_s: float = 30) -> str:
        """Wait until Ready has this reason; return its message."""

        def said() -> str:
            condition = self.condition(what)
            assert condition["reason"] == reason, f"{what}: {condition}"
            return condition["message"]

        return eventually(said, timeout_s=timeout_s)

    def wait_status(self, what: str, timeout_s: float = 60, **fields: Any) -> None:
        """Wait until the status has these values and observes the object's present generation."""

        def has() -> bool:
            found = self.get(what)
            status = found.get("status", {})
            wanted = fields | {"observedGeneration": found["metadata"]["generation"]}
            assert {k: status.get(k) for k in wanted} == wanted, f"{what}: {status}"
            return True

        eventually(has, timeout_s=timeout_s)

    def events(self, kind: str, name: str, reason: str) -> list[str]:
        """Return the messages of the events with this reason on an object, oldest first."""
        about = f"involvedObject.kind={kind},involvedObject.name={name},reason={reason}"
        found = self.kubectl("get", "events", f"--field-selector={about}", "--output=json")
        items = json.loads(found.stdout)["items"]
        items.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
        return [event["message"] for event in items]

    def wait_replaced(self, what: str, before: str) -> None:
        """Wait until another object of this name has replaced the one with that uid."""

        def replaced() -> bool:
            found = self.find(what)
            return found is not None and found["metadata"]["uid"] != before

        eventually(replaced, timeout_s=60, what=f"a new {what}")

    def wait_event(self, kind: str, name: str, reason: str, words: str = "") -> str:
        """Wait for an event whose message contains these words; return its message."""

        def matching() -> str:
            said = self.events(kind, name, reason)
            assert said, f"no event {reason} of {kind} {name}"
            assert words in said[-1], said
            return said[-1]

        return eventually(matching, timeout_s=30)

    def uid(self, what: str) -> str:
        return self.get(what)["metadata"]["uid"]

    # -- a client in a pod

    def start_client(self, user: str = "client") -> None:
        """Create a user of the cluster `main` who may do everything, and a pod in which `shoal`
        logs in as that user."""
        self.apply(queue_user(user, *EVERYTHING))
        self.wait(f"queueuser/{user}", timeout_s=120)
        self.start_pods(client_pod(user, user))

    def start_pods(self, *pods: Manifest) -> None:
        self.apply(*pods)
        for pod in pods:
            name = pod["metadata"]["name"]
            self.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")

    def user_properties(self, user: str, folder: Path) -> Path:
        """Write the Secret of a user to a folder, for clients outside; return client.properties."""
        for name, text in self.get(f"secret/{user}")["data"].items():
            content = base64.b64decode(text)
            (folder / name).write_bytes(content.replace(MOUNT.encode(), bytes(folder)))
        return folder / "client.properties"

    def shoal(
        self,
        *argv: str,
        stdin_text: str | None = None,
        cluster: str = "main",
        client: str = "client",
    ) -> str:
        """Return what a `shoal` command in the client's pod prints."""
        return self.shoal_result(
            *argv, stdin_text=stdin_text, cluster=cluster, client=client
        ).stdout

    def shoal_result(
        self,
        *argv: str,
        stdin_text: str | None = None,
        cluster: str = "main",
        client: str = "client",
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        servers = f"SHOAL_BOOTSTRAP_SERVERS={cluster}-bootstrap.{self.namespace}.svc:9092"
        attached = ("--stdin",) if stdin_text is not None else ()
        command = ("exec", *attached, client, "--", "env", servers, "shoal", *argv)
        return self.kubectl(*command, stdin_text=stdin_text, check=check)

    def produce(self, topic: str, count: int, first: int = 0) -> None:
        lines = "".join(f"{number}\n" for number in range(first, first + count))
        self.shoal("produce", topic, "--quiet", stdin_text=lines)

    def share_consume(self, topic: str, group: str, *argv: str) -> list[str]:
        """Return the values that a share consumer prints; by default until none came for 3 s."""
        timeout = () if "-n" in argv or "--max-messages" in argv else ("--timeout=3s",)
        command = ("share-consume", topic, f"--group={group}", "--format={value}", *timeout)
        return self.shoal(*command, *argv).split()


def queue_cluster(name: str = "main", **spec: Any) -> Manifest:
    """Return a QueueCluster of small brokers. Without a request for CPU they would get hardly any
    of it beside the executors of a Spark application, which have one."""
    small = {"storage": {"size": "256Mi"}, "resources": {"requests": {"cpu": "100m"}}}
    return _resource("QueueCluster", name, {**small, **spec})


def queue_user(name: str, *acls: Manifest, kind: str = "tls") -> Manifest:
    spec = {"cluster": "main", "authentication": {"type": kind}, "acls": list(acls)}
    return _resource("QueueUser", name, spec)


def client_pod(name: str, user: str = "") -> Manifest:
    """Return a pod in which `shoal` runs commands, with the Secret of a user if one is named."""
    container: Manifest = {
        "name": "client",
        "image": images.tag("broker"),
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", PAUSE],
        # Without a request, it gets hardly any CPU beside pods that have one.
        "resources": {"requests": {"cpu": "50m"}},
    }
    spec: Manifest = {"containers": [container]}
    if user:
        spec["volumes"] = [{"name": "user", "secret": {"secretName": user}}]
        container["volumeMounts"] = [{"name": "user", "mountPath": MOUNT}]
        file = f"{MOUNT}/client.properties"
        container["env"] = [{"name": "SHOAL_COMMAND_CONFIG", "value": file}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def queue_topic(name: str = "jobs", **spec: Any) -> Manifest:
    return _resource("QueueTopic", name, {"cluster": "main", "partitions": 2, **spec})


def queue_rebalance(name: str = "spread", **spec: Any) -> Manifest:
    return _resource("QueueRebalance", name, {"cluster": "main", "mode": "Full", **spec})


def share_group(name: str = "workers", **spec: Any) -> Manifest:
    return _resource(
        "ShareGroup",
        name,
        {"cluster": "main", "topics": ["jobs"], "startOffset": "Earliest", **spec},
    )


def share_consumer(name: str = "eaters", group: str = "workers", **spec: Any) -> Manifest:
    """Return a ShareConsumer of the user `client`, or of none with an empty `user`. Without a
    workload in `spec` it runs pods that consume slowly."""
    if not {"deployment", "spark", "job", "scaleTargetRef"} & spec.keys():
        spec["deployment"] = {"template": {"spec": consumer_pod()}}
    wanted = {"shareGroup": group, "user": "client", **spec}
    return _resource("ShareConsumer", name, {k: v for k, v in wanted.items() if v != ""})


def consumer_pod(per_second: int = 20) -> Manifest:
    """Return a pod that takes a few records at a time from its share group, at a steady rate."""
    return {
        "terminationGracePeriodSeconds": 5,
        "containers": [
            {
                "name": "consumer",
                "image": images.tag("broker"),
                "imagePullPolicy": "Never",
                "command": ["python3", "-c", CONSUME, str(per_second)],
                "resources": {"requests": {"cpu": "20m"}},
            }
        ],
    }


def _resource(kind: str, name: str, spec: Manifest) -> Manifest:
    meta = {"name": name}
    return {"apiVersion": "shoal.dev/v1beta1", "kind": kind, "metadata": meta, "spec": spec}


#: Accepts records at a rate, and releases the rest when it is stopped.
CONSUME = """
import asyncio, os, signal, sys
from shoal.client.client import Client
from shoal.client.settings import Settings
from shoal.client.share.member import AcknowledgeType, AcquireMode

async def main():
    pause, stop = 1 / int(sys.argv[1]), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Client(Settings.from_environment()) as client:
        topics = os.environ["SHOAL_TOPICS"].split(",")
        async with await client.share(os.environ["SHOAL_GROUP_ID"], topics) as session:
            while not stop.is_set():
                found = await session.acquire(max_records=10, mode=AcquireMode.RECORD_LIMIT)
                for acquired in found:
                    try:
                        await asyncio.wait_for(stop.wait(), pause * acquired.count)
                        return
                    except TimeoutError:
                        await session.acknowledge(acquired.acknowledge(AcknowledgeType.ACCEPT))

asyncio.run(main())
"""
