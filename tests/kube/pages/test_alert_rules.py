"""The chart's alerts, evaluated by Prometheus' own promtool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.cluster.commands import run
from e2e.promtool import promtool

FILE = Path(__file__).parents[3] / "helm" / "shoal" / "rules" / "alerts.yaml"
#: The rules of the namespace `queues`, as the chart renders them.
RULES = yaml.safe_load(FILE.read_text().replace("{OPERATOR}", '{namespace="queues"}'))
ALERTS = [rule["alert"] for group in RULES["groups"] for rule in group["rules"]]
MINUTES = 100
#: Half as often as Prometheus does it by default, since most of the test's time is these.
EVALUATED = "2m"
GROUP = 'namespace="shop",share_group="workers"'
OPERATOR = 'shoal_operator_leader{namespace="queues",pod="%s"}'
BROKER = 'namespace="shop",shoal_dev_cluster="main",pod="%s"'
QUEUE = BROKER % "a" + ',group="g"'
CONSUMER = 'namespace="shop",share_consumer="eaters"'


def series(name: str, values: str) -> dict[str, str]:
    return {"series": name, "values": values}


def of_group(lag: str, available: str, in_flight: str) -> list[dict[str, str]]:
    return [
        series(f"shoal_share_group_lag{{{GROUP}}}", lag),
        series(f"shoal_share_group_available{{{GROUP}}}", available),
        series(f"shoal_share_group_in_flight{{{GROUP}}}", in_flight),
    ]


def of_brokers(name: str, *values: str) -> list[dict[str, str]]:
    return [
        series(f"{name}{{{BROKER % pod}}}", one) for pod, one in zip("abc", values, strict=False)
    ]


def of_queue(name: str, values: str, more: str = "") -> list[dict[str, str]]:
    return [series(f"{name}{{{QUEUE}{more}}}", values)]


def of_disk(usable: str) -> list[dict[str, str]]:
    total = of_brokers("shoal_log_dir_total_bytes", "1000x120")
    return [*total, *of_brokers("shoal_log_dir_usable_bytes", usable)]


def of_descriptors(used: str, label: str = BROKER % "a") -> list[dict[str, str]]:
    return [
        series(f"process_open_fds{{{label}}}", used),
        series(f"process_max_fds{{{label}}}", "1000x120"),
    ]


def of_listener(seconds: str) -> list[dict[str, str]]:
    labels = BROKER % "a" + ',listener="tls"'
    return [series(f"shoal_listener_certificate_expiry_seconds{{{labels}}}", seconds)]


def of_consumer(wanted: str, ready: str, most: str, due: str) -> list[dict[str, str]]:
    values = {"wanted": wanted, "ready": ready, "maximum": most, "due": due}
    return [
        series(f"shoal_share_consumer_{name}{{{CONSUMER}}}", one) for name, one in values.items()
    ]


_CONTROLLER = "kafka_controller_KafkaController_"
_REPLICAS = "kafka_server_ReplicaManager_"
#: Samples that Prometheus has, one a minute, and the alerts that fire after `MINUTES`.
CASES: dict[str, tuple[list[dict[str, str]], list[str]]] = {
    "one replica acts": ([series(OPERATOR % "a", "1x120"), series(OPERATOR % "b", "0x120")], []),
    "no replica holds the Lease": ([series(OPERATOR % "a", "0x120")], ["ShoalNoOperatorActs"]),
    "no operator runs": ([], ["ShoalNoOperatorActs"]),
    "the operator went away": ([series(OPERATOR % "a", "1x20 stale")], ["ShoalNoOperatorActs"]),
    "an operator elsewhere": (
        [series('shoal_operator_leader{namespace="other",pod="a"}', "1x120")],
        ["ShoalNoOperatorActs"],
    ),
    "no member consumes": (of_group("50x120", "50x120", "0x120"), ["ShoalShareGroupStuck"]),
    "members hold records and do not settle them": (
        of_group("50x120", "0x120", "50x120"),
        ["ShoalShareGroupStuck"],
    ),
    "records get done": (of_group("2000-10x120", "2000-10x120", "0x120"), []),
    "all records are due later, or delivery is paused": (of_group("50x120", "0x120", "0x120"), []),
    "the lag is no longer reported": (
        of_group("50x20 stale", "50x20 stale", "0x20 stale"),
        [],
    ),
    "reconciling fails": (
        [series('shoal_operator_errors_total{kind="QueueTopic"}', "0+5x120")],
        ["ShoalOperatorErrors"],
    ),
    "one of three is the active controller": (
        of_brokers(f"{_CONTROLLER}ActiveControllerCount", "0x120", "1x120", "0x120"),
        [],
    ),
    "no controller is active": (
        of_brokers(f"{_CONTROLLER}ActiveControllerCount", "0x120", "1x50 stale", "0x120"),
        ["ShoalNoController"],
    ),
    "every partition has a leader": (
        of_brokers(f"{_CONTROLLER}OfflinePartitionsCount", "0x120", "0x120"),
        [],
    ),
    "partitions have no leader": (
        of_brokers(f"{_CONTROLLER}OfflinePartitionsCount", "0x97 3x20", "0x97 3x20"),
        ["ShoalOfflinePartitions"],
    ),
    "partitions are under their min ISR": (
        of_brokers(f"{_REPLICAS}UnderMinIsrPartitionCount", "0x120", "2x120"),
        ["ShoalUnderMinIsr"],
    ),
    "a broker restarts": (of_brokers(f"{_CONTROLLER}FencedBrokerCount", "0x97 1x2 0x20"), []),
    "a broker is down": (
        of_brokers(f"{_CONTROLLER}FencedBrokerCount", "1x120", "1x120"),
        ["ShoalBrokerDown"],
    ),
    "a replica catches up": (
        of_brokers(f"{_REPLICAS}UnderReplicatedPartitions", "0x90 5x20"),
        [],
    ),
    "a replica does not keep up": (
        of_brokers(f"{_REPLICAS}UnderReplicatedPartitions", "5x120"),
        ["ShoalUnderReplicated"],
    ),
    "a volume has room": (of_disk("101x120"), []),
    "a volume is nearly full": (of_disk("99x120"), ["ShoalDiskNearlyFull"]),
    "a volume is full": (of_disk("10x120"), ["ShoalDiskFull", "ShoalDiskNearlyFull"]),
    "a volume failed": (
        of_brokers(f"{_REPLICAS}OfflineReplicaCount", "4x120"),
        ["ShoalDiskFailed"],
    ),
    "descriptors are left": (of_descriptors("790x120"), []),
    "descriptors run out": (of_descriptors("810x120"), ["ShoalDescriptorsNearlyUsed"]),
    "another process runs out of them": (of_descriptors("990x120", 'pod="prometheus"'), []),
    "all logs are known": (of_brokers("shoal_log_stray_directories", "0x120"), []),
    "logs are unknown": (
        of_brokers("shoal_log_stray_directories", "0x120", "2x120"),
        ["ShoalStrayLogs"],
    ),
    "a certificate is renewed in time": (
        of_listener("2000000x120"),
        [],
    ),
    "a certificate is not renewed": (
        of_listener("600000-60x120"),
        ["ShoalCertificateExpires"],
    ),
    "a group is paused": (of_queue("shoal_share_group_held", "2x120", ',why="paused"'), []),
    "a window is full": (of_queue("shoal_share_group_held", "2x120", ',why="window-full"'), []),
    "too many letters": (
        of_queue("shoal_share_group_held", "2x120", ',why="flood"'),
        ["ShoalDeliveryHeld"],
    ),
    "a letter now and then": (of_queue("shoal_share_group_dead_letters_total", "0+1x120"), []),
    "many letters": (
        of_queue("shoal_share_group_dead_letters_total", "0+5x120"),
        ["ShoalDeadLetters"],
    ),
    "letters cannot be written": (
        of_queue("shoal_share_group_dead_letter_failures_total", "0+1x120", ',reason="x"'),
        ["ShoalDeadLettersFail"],
    ),
    "letters could not be written an hour ago": (
        of_queue("shoal_share_group_dead_letter_failures_total", "0+1x40 40x80", ',reason="x"'),
        [],
    ),
    "records were dropped": (
        of_queue("shoal_share_group_dead_letters_dropped_total", "0x95 7x20"),
        ["ShoalDeadLettersDropped"],
    ),
    "a job takes ten minutes": (
        of_queue("shoal_share_partition_oldest_lock_age_seconds", "600x120"),
        [],
    ),
    "a member renews its lock forever": (
        of_queue("shoal_share_partition_oldest_lock_age_seconds", "0+60x120"),
        ["ShoalLockTooOld"],
    ),
    "consumers do not start": (
        of_consumer("4x120", "2x120", "9x120", "10x120"),
        ["ShoalConsumersMissing"],
    ),
    "the maximum is enough": (of_consumer("9x120", "9x120", "9x120", "9000-50x120"), []),
    "the maximum is not enough": (
        of_consumer("9x120", "9x120", "9x120", "0+50x120"),
        ["ShoalConsumersAtMaximum"],
    ),
    "a store that fails on one broker": (
        of_brokers("shoal_remote_failing_partitions", "2x120", "0x120"),
        ["ShoalTieredStorageFailing"],
    ),
    "a missing object": (
        of_brokers("shoal_remote_missing_objects", "0x20 1x100"),
        ["ShoalRemoteObjectsMissing"],
    ),
    "a store that works": (
        [
            *of_brokers("shoal_remote_failing_partitions", "0x120"),
            *of_brokers("shoal_remote_missing_objects", "0x120"),
        ],
        [],
    ),
    "there is work for some": (of_consumer("4x120", "4x120", "9x120", "0+50x120"), []),
}


def test_every_alert_has_a_case() -> None:
    assert {name for _, expected in CASES.values() for name in expected} == set(ALERTS)


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text(json.dumps(RULES))
    # `test` runs all cases in one process, and names those that fail.
    file = tmp_path / "test.json"
    tests = [case(name, *CASES[name]) for name in CASES]
    given = {"rule_files": ["rules.json"], "evaluation_interval": EVALUATED, "tests": tests}
    file.write_text(json.dumps(given))
    run(promtool(), "test", "rules", file)


def case(name: str, given: list[dict[str, str]], expected: list[str]) -> dict[str, Any]:
    if expected != ["ShoalNoOperatorActs"]:
        given = [*given, series(OPERATOR % "acting", "1x120")]
    # Prometheus lists firing alerts in ALERTS, without their texts.
    shown = [{"labels": f'{{alertname="{one}"}}', "value": 1} for one in sorted(expected)]
    return {
        "name": name,
        "interval": "1m",
        "input_series": given,
        "promql_expr_test": [
            {
                "expr": 'max by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{MINUTES}m",
                "exp_samples": shown,
            }
        ],
    }


@pytest.mark.parametrize("group", RULES["groups"], ids=lambda group: group["name"])
def test_rules_have_a_severity_and_texts(group: dict[str, Any]) -> None:
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert all(text.endswith(".") for text in rule["annotations"].values())
