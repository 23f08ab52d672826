"""`shoal server` as users see it: its output, its errors, and its exit."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families
from shoal.protocol.api import ApiKey
from support.brokers.wireclient import WireClient
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers.servers import ShoalProcess


def server(*flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a server that must not start."""
    return subprocess.run(
        [sys.executable, "-m", "shoal.cli", "server", *flags],
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, **environment},
    )


def refusal(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 1, result
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def test_it_prints_its_address_and_its_data_directory(shared_broker: ShoalProcess) -> None:
    said = "\n".join(shared_broker.log)
    assert f"listens on {shared_broker.bootstrap}" in said
    assert f"Its data is in {shared_broker.data_dir}" in said


def test_a_clean_stop_leaves_the_marker_and_a_restart_takes_it(broker: ShoalProcess) -> None:
    marker = broker.data_dir / ".kafka_cleanshutdown"
    assert not marker.exists()
    assert broker.stop() == 0
    assert marker.exists()
    broker.start()
    assert not marker.exists()
    broker.kill9()
    assert not marker.exists()
    broker.start()


def test_a_port_in_use(shared_broker: ShoalProcess, tmp_path: Path) -> None:
    data_dir = tmp_path / "other"
    said = refusal(server(f"--listener={shared_broker.bootstrap}", f"--data-dir={data_dir}"))
    assert f"Cannot listen on {shared_broker.bootstrap}: another process listens there." in said
    assert not data_dir.exists()


def test_a_data_directory_in_use(shared_broker: ShoalProcess) -> None:
    said = refusal(server("--listener=127.0.0.1:0", f"--data-dir={shared_broker.data_dir}"))
    assert "is in use by another broker" in said


def test_a_data_directory_of_another_broker(broker: ShoalProcess) -> None:
    broker.stop()
    said = refusal(
        server("--listener=127.0.0.1:0", f"--data-dir={broker.data_dir}", "--set=node.id=7")
    )
    assert "belongs to node 1" in said
    assert "this is node 7" in said


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = refusal(server("--listener=127.0.0.1:0", f"--data-dir={tmp_path / 'file'}"))
    assert "Cannot use the data directory" in said


@pytest.mark.parametrize(
    ("flags", "environment", "sentence"),
    [
        (["--set=log.retentoin.ms=1"], {}, "Did you mean log.retention.ms?"),
        (["--set=log.retention.ms=x"], {}, "log.retention.ms"),
        (["--set=nothing"], {}, "--set must be NAME=VALUE"),
        ([], {"SHOAL_NUM_PARTITIONS": "0"}, "num.partitions"),
        ([], {"SHOAL_NO_SUCH": "0"}, "SHOAL_NO_SUCH names no broker config"),
        (["--config=missing.properties"], {}, "Cannot read the configuration file"),
        (["--listener=localhost"], {}, "not of the form"),
        (["--insecure", "--listener=no.such.host.invalid:0"], {}, "the host name is not known"),
        (["--insecure", "--listener=203.0.113.7:0"], {}, "this machine has no such address"),
        (["--listener=203.0.113.7:0"], {}, "accept the risk with --insecure"),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(
    tmp_path: Path, flags: list[str], environment: dict[str, str], sentence: str
) -> None:
    data_dir = tmp_path / "data"
    defaults = [] if any("--listener" in f for f in flags) else ["--listener=127.0.0.1:0"]
    said = refusal(server(f"--data-dir={data_dir}", *defaults, *flags, **environment))
    assert sentence in said
    assert not data_dir.exists()


def test_a_file_sets_configs(start_broker: Callable[..., ShoalProcess], tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("# a comment\nnode.id=3\n")
    broker = start_broker(environment={"SHOAL_CONFIG": str(path)})
    assert any("broker 3" in line for line in broker.log)


@pytest.mark.parametrize("given", ["log.dir", "log.dirs", "both"])
def test_the_directory_of_logs(
    start_broker: Callable[..., ShoalProcess], tmp_path: Path, given: str
) -> None:
    """log.dirs has precedence over log.dir."""
    names = ["log.dir", "log.dirs"] if given == "both" else [given]
    broker = start_broker(configs={name: str(tmp_path / name) for name in names})
    with WireClient(broker.bootstrap) as client:
        client.create_topic("stored")
        client.produce("stored", b"value")
    assert [path.name for path in tmp_path.iterdir()] == [names[-1]]
    folder = tmp_path / names[-1]
    assert (folder / "meta.properties").exists()
    assert sum(path.stat().st_size for path in (folder / "stored-0").glob("*.log")) > 0


def test_health_and_metrics(broker: ShoalProcess) -> None:
    def get(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(broker.metrics_url + path, timeout=90) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    assert get("/healthz") == (200, "ok\n")
    assert get("/readyz") == (200, "ready\n")
    assert get("/else")[0] == 404
    status, text = get("/metrics")
    assert status == 200
    assert "kafka_server_ReplicaManager_PartitionCount 0\n" in text
    assert list(text_string_to_metric_families(text))


def test_it_names_settings_without_effect(start_broker: Callable[..., ShoalProcess]) -> None:
    """In one line, and only settings that the user has set; a change is logged."""
    given = {"num.io.threads": "4", "share.coordinator.threads": "2", "log.retention.ms": "9000"}
    broker = start_broker(configs=given)
    (said,) = [line for line in broker.log if line.startswith("Set without effect")]
    assert said == (
        "Set without effect: num.io.threads, share.coordinator.threads."
        " docs/configs.md lists what has an effect."
    )
    # The log is another stream than the sentence.
    eventually(lambda: any("settings without effect" in line for line in broker.log))
    (logged,) = [line for line in broker.log if "settings without effect" in line]
    assert "num.io.threads" in logged
    # The cluster has got the number of its first start.
    broker.stop()
    broker.configs["min.insync.replicas"] = "2"
    broker.start()
    assert (
        "The cluster has min.insync.replicas=1, which hides this broker's min.insync.replicas=2."
        " `shoal configs set broker default min.insync.replicas=2` changes it."
    ) in broker.log
    assert "log.retention.ms" not in logged
    with WireClient(broker.bootstrap) as client:
        client.create_topic("t")
        for kind, name, config in (
            (2, "t", "internal.segment.bytes"),
            (4, "", "background.threads"),
            (2, "t", "retention.ms"),
        ):
            change = {"name": config, "config_operation": 0, "value": "1"}
            resource = {"resource_type": kind, "resource_name": name, "configs": [change]}
            body = {"resources": [resource], "validate_only": False}
            (row,) = client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses
            assert row.error_code == 0, row

    def logged_of(kind: str) -> list[str]:
        altered = [line for line in broker.log if "settings without effect" in line][1:]
        return [line for line in altered if kind in line]

    for logged_type, name in (
        ("topic", "internal.segment.bytes"),
        ("broker", "background.threads"),
    ):
        eventually(
            lambda name=name, type=logged_type: any(name in line for line in logged_of(type))
        )
    assert not any("'retention.ms'" in line for line in broker.log)


def test_a_broker_without_such_settings_logs_nothing(broker: ShoalProcess) -> None:
    assert not [line for line in broker.log if "without effect" in line]


def test_a_console_beside_the_broker(start_broker: Callable[..., ShoalProcess]) -> None:
    """It finds the broker's metrics, and ends with the broker, also after a kill."""
    broker = start_broker(flags=("--console=127.0.0.1:0",))

    def address() -> str | None:
        lines = [line for line in broker.log if line.startswith("The console is at ")]
        return lines[0].split()[4].rstrip(".") if lines else None

    def page() -> str | None:
        with urllib.request.urlopen(eventually(address), timeout=60) as answer:
            text = answer.read().decode()
        return text if "There are no queues yet." in text else None

    assert "shows its metrics" not in eventually(page, what="the first sample")
    url = eventually(address)
    broker.kill9()

    def ended() -> bool:
        try:
            urllib.request.urlopen(url, timeout=60).close()
        except urllib.error.URLError:
            return True
        return False

    eventually(ended, what="the end of the console")


def test_a_console_needs_a_listener_without_login(tmp_path: Path) -> None:
    flags = (f"--data-dir={tmp_path}", "--console=127.0.0.1:0", "--listener=SASL://127.0.0.1:0")
    protocols = "--set=listener.security.protocol.map=SASL:SASL_PLAINTEXT"
    mechanisms = "--set=sasl.enabled.mechanisms=SCRAM-SHA-256"
    said = refusal(server(*flags, protocols, mechanisms))
    assert "--console connects to the first listener, and SASL needs SASL_PLAINTEXT." in said
