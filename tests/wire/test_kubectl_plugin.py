"""`kubectl shoal` with a real broker that advertises a name of Kubernetes. kubectl is a program of
the test, which answers as kubectl does and forwards ports.

A command is a process that imports the client and starts others, which takes some seconds."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from support.brokers.commands import run_process
from support.brokers.ports import free_ports
from support.security.certificates import Authority, Stores

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers.servers import ShoalProcess

HOST = "main-broker-0.main-brokers.shop.svc"
#: It has the objects in files, and notes its arguments. Its forwards lead to the test's broker.
KUBECTL = """#!{python}
import pathlib, sys
folder, words = pathlib.Path({folder!r}), sys.argv[1:]
with (folder / "calls").open("a") as calls:
    calls.write(" ".join(words) + "\\n")
if "get" in words:
    kind, name = words[words.index("get") + 1 :][:2]
    found = folder / f"{{kind}}-{{name}}.json"
    if not found.exists():
        sys.exit(f"Error from server (NotFound): {{kind}} {{name!r}} not found")
    print(found.read_text())
    sys.exit(0)
import asyncio
async def copy(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()
async def serve(reader, writer):
    print("Handling connection", flush=True)
    there, back = await asyncio.open_connection("127.0.0.1", {port})
    await asyncio.gather(copy(reader, back), copy(there, writer))
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(f"Forwarding from 127.0.0.1:{{port}} -> 9092", flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


class Shop(NamedTuple):
    """The folder of the program that stands for kubectl."""

    folder: Path

    def put(self, kind: str, name: str, **fields: Any) -> None:
        manifest = {"metadata": {"name": name, "namespace": "shop"}, **fields}
        (self.folder / f"{kind}-{name}.json").write_text(json.dumps(manifest))

    def run(self, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run `kubectl shoal` with these words."""
        program = [sys.executable, "-m", "shoal.cli.kubectl_plugin"]
        path = f"{self.folder}:{os.environ['PATH']}"
        variables = {**os.environ, "PATH": path, "SHOAL_PROFILE": "of another cluster"}
        return run_process([*program, *words], environment=variables, stdin=text)

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


def make_shop(folder: Path, port: int) -> Shop:
    folder.mkdir()
    program = folder / "kubectl"
    text = KUBECTL.format(python=sys.executable, folder=str(folder), port=port)
    program.write_text(text)
    program.chmod(0o755)
    shop = Shop(folder)
    servers = "main-bootstrap.shop.svc:9092"
    shop.put("queuecluster", "main", status={"bootstrapServers": servers})
    return shop


def test_a_command_reaches_the_brokers_through_forwarded_ports(
    start_broker: Callable[..., ShoalProcess], tmp_path: Path
) -> None:
    broker = start_broker(configs={"advertised.listeners": f"PLAINTEXT://{HOST}:9092"})
    shop = make_shop(tmp_path / "shop", int(broker.bootstrap.rpartition(":")[2]))
    flags = ("-n", "shop", "--context=prod", "main")
    done = shop.run(*flags, "topics", "create", "jobs")
    assert (done.returncode, done.stderr) == (0, "")
    assert shop.calls() == [
        "--context=prod --namespace=shop get queuecluster main --output=json",
        "--context=prod --namespace=shop port-forward service/main-bootstrap :9092",
    ]
    # Records go to the leader of their partition.
    done = shop.run(*flags, "produce", "jobs", text="one")
    assert (done.returncode, done.stderr) == (0, "Produced 1 record to jobs.\n")
    assert shop.calls()[-1] == (
        "--context=prod --namespace=shop port-forward pod/main-broker-0 :9092"
    )


def test_a_user_logs_in_with_the_files_of_its_secret(
    start_broker: Callable[..., ShoalProcess], tmp_path: Path
) -> None:
    """TLS checks the broker's name, which no resolver knows here."""
    authority, port = Authority(), free_ports(1)[0]
    server = authority.issue("server", names=[HOST, "main-bootstrap.shop.svc"])
    stores = Stores(tmp_path / "stores").configs(server, authority)
    start_broker(
        configs={
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:1,SSL://{HOST}:9093",
            **{f"listener.name.ssl.{name}": value for name, value in stores.items()},
            "listener.name.ssl.ssl.client.auth": "required",
        },
        flags=[f"--listener=SSL://127.0.0.1:{port}"],
    )
    shop = make_shop(tmp_path / "shop", port)
    properties = (
        "bootstrap.servers=main-bootstrap.shop.svc:9093\nsecurity.protocol=SSL\n"
        "ssl.truststore.type=PEM\nssl.truststore.location=/etc/shoal/user/ca.crt\n"
        "ssl.keystore.type=PEM\nssl.keystore.location=/etc/shoal/user/user.pem\n"
    )
    painter = authority.issue("painter", names=[])
    files = {"client.properties": properties, "ca.crt": authority.pem, "user.pem": painter.pem}
    data = {name: base64.b64encode(text.encode()).decode() for name, text in files.items()}
    shop.put("queueuser", "painter", spec={"cluster": "main"})
    shop.put("secret", "painter", data=data)
    done = shop.run("--user=painter", "main", "whoami", "--format=json")
    assert done.stderr == ""
    (row,) = json.loads(done.stdout)
    assert "painter" in row["principal"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["away", "whoami"], "kubectl shoal: Error from server (NotFound): queuecluster 'away'"),
        (["--user=who", "main", "whoami"], "queueuser 'who' not found"),
        (["--user=other", "main", "whoami"], "QueueUser other belongs to QueueCluster second"),
    ],
)
def test_what_kubernetes_refuses_is_said_in_its_words(
    words: list[str], error: str, tmp_path: Path
) -> None:
    shop = make_shop(tmp_path / "shop", 1)
    shop.put("queueuser", "other", spec={"cluster": "second"})
    done = shop.run(*words)
    assert done.returncode == 1
    assert error in done.stderr


def test_without_kubectl_the_remedy_is_said(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "shoal.cli.kubectl_plugin", "main", "whoami"]
    done = subprocess.run(
        program, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert "kubectl is not in your PATH. Install it." in done.stderr
