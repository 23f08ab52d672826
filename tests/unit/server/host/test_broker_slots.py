"""The settings of several brokers on one host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from shoal.server.config import BrokerConfig, InvalidConfig, resolve
from shoal.server.host import broker_slots

if TYPE_CHECKING:
    from pathlib import Path

QUORUM = "10@one:9092,20@two:9092,30@three:9092"


def config(**given: str) -> BrokerConfig:
    flags = {name.replace("_", "."): value for name, value in given.items()}
    return resolve({"shoal.brokers.per.host": "3"} | flags, {})


def found(**given: str) -> list[broker_slots.BrokerSlot]:
    return broker_slots.allocate(config(**given), host="one", cluster_id="made-up")


def test_the_first_broker_has_the_given_settings() -> None:
    rows = found(
        node_id="10",
        listeners="PLAINTEXT://:9092",
        advertised_listeners="PLAINTEXT://one.example:19092",
        log_dirs="/data",
        shoal_metrics_listener="0.0.0.0:9404",
        controller_quorum_voters=QUORUM,
        shoal_cluster_id="c",
    )
    assert [slot.id for slot in rows] == [10, 11, 12]
    for number, (id, settings) in enumerate(rows):
        assert settings == {
            "shoal.brokers.per.host": "1",
            "broker.rack": "one",
            "node.id": str(id),
            "listeners": f"PLAINTEXT://:{9092 + number}",
            "advertised.listeners": f"PLAINTEXT://one.example:{19092 + number}",
            "log.dirs": f"/data/{id}",
            "shoal.metrics.listener": f"0.0.0.0:{9404 + number}",
            "process.roles": "broker" if number else "broker,controller",
        }


def test_a_given_rack_is_kept() -> None:
    assert all("broker.rack" not in slot.settings for slot in found(broker_rack="zone-a"))


def test_one_host_is_a_cluster() -> None:
    """The first broker is the only voter. All brokers get the id of the cluster."""
    for slot in found(listeners="PLAINTEXT://[::1]:9092"):
        assert slot.settings["controller.quorum.voters"] == "1@[::1]:9092"
        assert slot.settings["shoal.cluster.id"] == "made-up"
    given = found(shoal_cluster_id="given")
    assert all("shoal.cluster.id" not in slot.settings for slot in given)
    wide = found(listeners="PLAINTEXT://:9092")
    assert wide[0].settings["controller.quorum.voters"] == "1@one:9092"


def test_only_controllers_get_a_controller_listener() -> None:
    rows = found(
        listeners="PLAINTEXT://one:9092,CONTROLLER://one:9192",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        controller_listener_names="CONTROLLER",
    )
    assert rows[0].settings["controller.quorum.voters"] == "1@one:9192"
    assert [slot.settings["listeners"] for slot in rows] == [
        "PLAINTEXT://one:9092,CONTROLLER://one:9192",
        "PLAINTEXT://one:9093",
        "PLAINTEXT://one:9094",
    ]


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"listeners": "PLAINTEXT://a:65534"}, ["65534", "no port"]),
        ({"listeners": "PLAINTEXT://a:0"}, ["PLAINTEXT", "any free port"]),
        (
            {"listeners": "PLAINTEXT://a:9092", "shoal_metrics_listener": "a:9094"},
            ["Broker 1 (metrics) and broker 3 (PLAINTEXT)", "port 9094", "at least 3 apart"],
        ),
        (
            {"process_roles": "controller", "controller_quorum_voters": QUORUM},
            ["process.roles does not include broker", "shoal.brokers.per.host"],
        ),
    ],
    ids=["too-high", "any-port", "clash", "controller"],
)
def test_invalid_settings(given: dict[str, str], parts: list[str]) -> None:
    with pytest.raises(InvalidConfig) as refused:
        found(**given)
    assert all(part in str(refused.value) for part in parts), refused.value


def test_the_directory_of_a_single_broker_is_refused(tmp_path: Path) -> None:
    given = config(log_dirs=str(tmp_path))
    assert broker_slots.find_data_dir_conflict(given) is None
    assert broker_slots.read_cluster_id(given) is None
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    assert f"move its data to {tmp_path}/1" in str(broker_slots.find_data_dir_conflict(given))
    (tmp_path / "1").mkdir()
    (tmp_path / "meta.properties").rename(tmp_path / "1" / "meta.properties")
    assert broker_slots.find_data_dir_conflict(given) is None
    assert broker_slots.read_cluster_id(given) == "c"
