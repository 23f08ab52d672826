"""Apache Kafka in a pod of the test cluster: one broker, with a login by SCRAM.

The jars come from `make java`; the operator has nothing to do with the pod.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from e2e.cluster import images
from support.kafka.kafka_tools import LIBRARY
from support.kafka.kafkas import CLUSTER_ID, SINGLE_NODE

if TYPE_CHECKING:
    from e2e.resources import Resources

Manifest = dict[str, Any]
NAME, PORT = "kafka", 9092
USER, PASSWORD = "platform", "of-the-platform"
#: The JVM's flags of `kafka_tools.java`, and more memory.
JAVA = (
    "java -Xmx384m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.level=WARN -cp '/opt/kafka/*'"
)
FOLDER = "/var/kafka"
START = f"""
{JAVA} kafka.tools.StorageTool format -t {CLUSTER_ID} -c /etc/kafka/server.properties \\
    --standalone --feature share.version=1 \\
    --add-scram 'SCRAM-SHA-512=[name={USER},password={PASSWORD}]'
exec {JAVA} kafka.Kafka /etc/kafka/server.properties
"""
LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required"
#: What clients need, in the form of a QueueUser's Secret.
CLIENT_PROPERTIES = f"""\
security.protocol=SASL_PLAINTEXT
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config={LOGIN} username="{USER}" password="{PASSWORD}";
"""


class ApacheKafka:
    """The broker in a namespace, behind the Service `kafka`."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.bootstrap = f"{NAME}.{resources.namespace}.svc:{PORT}"

    def start(self) -> None:
        """Create the pod, its Service and its settings; return when it accepts connections."""
        jars = sorted(LIBRARY.resolve().glob("*.jar"))
        self.resources.cluster.load(images.kafka_archive(jars))
        properties = "".join(f"{name}={value}\n" for name, value in self.properties().items())
        self.resources.apply(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": NAME},
                "data": {"server.properties": properties},
            },
            service(),
            pod(),
        )
        wait = ("wait", "--for=condition=Ready", f"pod/{NAME}", "--timeout=180s")
        self.resources.kubectl(*wait)

    def properties(self) -> dict[str, str]:
        """Return the settings of the broker: clients log in, and the broker itself does not."""
        protocols = {"CLIENTS": "SASL_PLAINTEXT", "PLAINTEXT": "PLAINTEXT"}
        inner = f"PLAINTEXT://127.0.0.1:{PORT + 1}"
        return {
            **SINGLE_NODE,
            "log.dirs": f"{FOLDER}/log",
            "listeners": f"CLIENTS://:{PORT},{inner},CONTROLLER://127.0.0.1:{PORT + 2}",
            "advertised.listeners": f"CLIENTS://{self.bootstrap},{inner}",
            "listener.security.protocol.map": ",".join(
                f"{name}:{value}"
                for name, value in (protocols | {"CONTROLLER": "PLAINTEXT"}).items()
            ),
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{PORT + 2}",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.clients.scram-sha-512.sasl.jaas.config": f"{LOGIN};",
        }


def service() -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME},
        "spec": {"selector": {"app": NAME}, "ports": [{"port": PORT}]},
    }


def pod() -> Manifest:
    container = {
        "name": NAME,
        "image": images.KAFKA_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-ec", START],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": "data", "mountPath": FOLDER},
            {"name": "settings", "mountPath": "/etc/kafka"},
        ],
    }
    volumes = [
        {"name": "data", "emptyDir": {}},
        {"name": "settings", "configMap": {"name": NAME}},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": NAME, "labels": {"app": NAME}},
        "spec": {
            "containers": [container],
            "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000},
            "volumes": volumes,
        },
    }


def secret(name: str) -> Manifest:
    """Return a Secret with which the operator or consumers log in."""
    encoded = base64.b64encode(CLIENT_PROPERTIES.encode()).decode()
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "data": {"client.properties": encoded},
    }
