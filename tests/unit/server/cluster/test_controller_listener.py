"""The listeners that a node has for controllers, by its settings."""

from __future__ import annotations

import pytest
from shoal.server.cluster.controller_listener import with_controller_listener
from shoal.server.cluster_config import Listeners, make_cluster_config
from shoal.server.config import BrokerConfig, InvalidConfig, resolve
from shoal.server.handlers import HANDLERS, TABLES
from shoal.server.host import broker_slots

BROKER, CONTROLLER, BOTH = Listeners.BROKER, Listeners.CONTROLLER, Listeners.BOTH
QUORUM = "1@one:9093,2@two:9093"


def config(**given: str) -> BrokerConfig:
    flags = {name.replace("_", "."): value for name, value in given.items()}
    return with_controller_listener(resolve({"node.id": "1"} | flags, {}))


def kinds(**given: str) -> dict[str, Listeners]:
    return dict(make_cluster_config(config(**given)).kinds)


def test_every_api_is_on_a_listener_and_no_table_lacks_it() -> None:
    assert all(row.on for row in HANDLERS.values())
    for kind, table in TABLES.items():
        assert set(table) == {key for key, row in HANDLERS.items() if row.on & kind}
    assert set(TABLES[BOTH]) == set(HANDLERS)


@pytest.mark.parametrize(
    ("listener", "quorum", "added", "advertised"),
    [
        ("PLAINTEXT://one:9092", QUORUM, "one:9093", None),
        ("PLAINTEXT://:9092", QUORUM, ":9093", "one:9093"),
        ("PLAINTEXT://127.0.0.1:9092", QUORUM, "127.0.0.1:9093", "one:9093"),
        ("PLAINTEXT://[::1]:9092", "1@[::1]:9093", "[::1]:9093", None),
    ],
)
def test_a_voter_listens_at_its_port_of_the_quorum(
    listener: str, quorum: str, added: str, advertised: str | None
) -> None:
    """On the host of its first listener; other nodes reach it at its address in the quorum."""
    found = config(listeners=listener, controller_quorum_voters=quorum)
    assert found.explicit["listeners"] == f"{listener},CONTROLLER://{added}"
    expected = None if advertised is None else f"CONTROLLER://{advertised}"
    assert found.explicit.get("advertised.listeners") == expected
    cluster = make_cluster_config(found)
    assert cluster.kinds == {"PLAINTEXT": BROKER, "CONTROLLER": CONTROLLER}
    assert (cluster.listener, cluster.inter_broker) == ("CONTROLLER", "PLAINTEXT")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"controller_quorum_voters": "1@one:9092,2@two:9092"},
        {"controller_quorum_voters": "2@two:9093"},
        {"controller_quorum_voters": "2@two:9093", "process_roles": "broker"},
        {
            "controller_quorum_voters": QUORUM.replace("9093", "19092"),
            "advertised_listeners": "PLAINTEXT://one:19092",
        },
    ],
    ids=["alone", "clients-port", "no-voter", "broker", "advertised"],
)
def test_nothing_is_added_without_need(given: dict[str, str]) -> None:
    found = config(listeners="PLAINTEXT://one:9092", **given)
    assert found.explicit["listeners"] == "PLAINTEXT://one:9092"
    assert make_cluster_config(found).kinds == {"PLAINTEXT": BROKER}


def test_a_host_of_several_brokers_has_its_controller_on_loopback() -> None:
    found = config(listeners="PLAINTEXT://one:9092", shoal_brokers_per_host="3")
    rows = broker_slots.allocate(found, host="one", cluster_id="made-up")
    assert [row.settings["listeners"] for row in rows] == [
        "PLAINTEXT://one:9092,CONTROLLER://127.0.0.1:9095",
        "PLAINTEXT://one:9093",
        "PLAINTEXT://one:9094",
    ]
    for row in rows:
        assert row.settings["controller.quorum.voters"] == "1@127.0.0.1:9095"
        assert row.settings["controller.listener.names"] == "CONTROLLER"


NAMED = {"controller_listener_names": "CONTROLLER"}
TWO = {"listeners": "PLAINTEXT://one:9092,CONTROLLER://one:9093"}


def test_the_roles_decide_what_is_opened() -> None:
    voters = {"controller_quorum_voters": "2@two:9093"}
    assert kinds(**NAMED, **TWO) == {"PLAINTEXT": BROKER, "CONTROLLER": CONTROLLER}
    assert kinds(**NAMED, **TWO, **voters, process_roles="broker") == {"PLAINTEXT": BROKER}
    alone = {"listeners": "CONTROLLER://one:9093", "controller_quorum_voters": QUORUM}
    assert kinds(**NAMED, **alone, process_roles="controller") == {"CONTROLLER": CONTROLLER}
    shared = {"listeners": "PLAINTEXT://one:9092", "controller_listener_names": "PLAINTEXT"}
    assert kinds(**shared) == {"PLAINTEXT": BOTH}


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (
            NAMED | {"listeners": "PLAINTEXT://one:9092"},
            ["which is not in listeners", "Add CONTROL"],
        ),
        (
            TWO | {"listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"},
            ["set controller.listener.names=CONTROLLER"],
        ),
        (
            NAMED
            | {"listeners": "CONTROLLER://one:9093", "process_roles": "broker"}
            | {"controller_quorum_voters": "2@two:9093"},
            ["has all the listeners", "leave one listener"],
        ),
    ],
    ids=["absent", "not-named", "none-left"],
)
def test_invalid_listener_settings(given: dict[str, str], parts: list[str]) -> None:
    with pytest.raises(InvalidConfig) as refused:
        kinds(**given)
    assert all(part in str(refused.value) for part in parts), refused.value
