"""Broker configs from flags, environment and file."""

from pathlib import Path

import pytest
from shoal.client.properties import parse_properties
from shoal.server import config
from shoal.server.cluster_config import make_cluster_config
from shoal.server.config import InvalidConfig, resolve
from shoal.server.listener_security import SecurityProtocol


def test_flag_beats_environment_beats_file() -> None:
    text = "log.retention.ms=1\nlog.segment.bytes=2000000\nfetch.max.bytes=5000\n"
    environment = {"SHOAL_LOG_RETENTION_MS": "2", "SHOAL_LOG_SEGMENT_BYTES": "3000000"}
    found = resolve({"log.retention.ms": "3"}, environment, text, "x.properties")
    assert found["log.retention.ms"] == 3
    assert found["log.segment.bytes"] == 3_000_000
    assert found["fetch.max.bytes"] == 5000
    assert found["socket.request.max.bytes"] == 104_857_600


@pytest.mark.parametrize(
    ("flags", "environment", "text", "sentence"),
    [
        (
            {"log.retention.msx": "1"},
            {},
            "",
            "no broker config log.retention.msx, set by a flag. Did you mean log.retention.ms?",
        ),
        (
            {},
            {"SHOAL_LOG_RETENTON_MS": "1"},
            "",
            "SHOAL_LOG_RETENTON_MS names no broker config. Did you mean SHOAL_LOG_RETENTION_MS?",
        ),
        ({}, {}, "num.partitions = many", "Invalid value many for configuration num.partitions"),
        ({}, {}, "num.partitions = many", "set by x.properties"),
        ({"group.consumer.assignors": "range,foo"}, {}, "", "must be one of: uniform, range"),
        ({"listeners": "PLAINTEXT:/a:1"}, {}, "", "not of the form PLAINTEXT://host:port"),
        (
            {"listener.security.protocol.map": "A:TLS"},
            {},
            "",
            "'A:TLS', which is not of the form NAME:PROTOCOL with one of PLAINTEXT, SSL",
        ),
        (
            {"listener.name.plaintext.ssl.key": "x"},
            {},
            "",
            "Did you mean listener.name.plaintext.ssl.",
        ),
        ({"listener.name.PLAINTEXT.ssl.protocol": "x"}, {}, "", "stands in lower case here"),
        ({"listener.name.ssl.log.dirs": "x"}, {}, "", "log.dirs is the same for all listeners"),
        (
            {"listener.name.ssl.plain.ssl.protocol": "x"},
            {},
            "",
            "ssl.protocol is the same for all SASL mechanisms",
        ),
        (
            {"listener.name.plaintxt.ssl.protocol": "TLSv1.3"},
            {},
            "",
            "for a listener plaintxt, which neither listeners nor listener.security.protocol.map"
            " has. Did you mean plaintext?",
        ),
        (
            {},
            {"SHOAL_LISTENER_NAME_A_SSL_CLIENT_AUTHN": "none"},
            "",
            "SHOAL_LISTENER_NAME_A_SSL_CLIENT_AUTHN names no broker config",
        ),
        ({"listeners": "A://a:1"}, {}, "", "A has no security protocol"),
        ({"log.dirs": "a,b"}, {}, "", "log.dirs names 2 directories"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, {}, "", "no client can connect to"),
        ({"advertised.listeners": "B://b:1"}, {}, "", "which is not in listeners. Add it"),
    ],
)
def test_a_mistake_is_named(
    flags: dict[str, str], environment: dict[str, str], text: str, sentence: str
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        resolve(flags, environment, text, "x.properties")
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            "group.share.max.share.sessions=150",
            "group.share.max.share.sessions must be greater than or equal to group.share.max.size",
        ),
        (
            "group.share.max.record.lock.duration.ms=30000"
            " group.share.record.lock.duration.ms=40000",
            "group.share.record.lock.duration.ms must be less than or equal to"
            " group.share.max.record.lock.duration.ms",
        ),
        (
            "group.share.min.delivery.count.limit=4 group.share.delivery.count.limit=3",
            "group.share.delivery.count.limit must be greater than or equal to"
            " group.share.min.delivery.count.limit",
        ),
        (
            "group.share.min.session.timeout.ms=70000",
            "group.share.max.session.timeout.ms must be greater than or equal to"
            " group.share.min.session.timeout.ms",
        ),
        (
            "group.share.heartbeat.interval.ms=50000 group.share.max.heartbeat.interval.ms=60000",
            "group.share.heartbeat.interval.ms must be less than group.share.session.timeout.ms",
        ),
        (
            "group.consumer.session.timeout.ms=70000",
            "group.consumer.session.timeout.ms must be less than or equal to"
            " group.consumer.max.session.timeout.ms",
        ),
        ("group.consumer.assignors=", "group.consumer.assignors must not be empty"),
        ("log.retention.hours=0", "log.retention.ms must be unlimited (-1) or, greater than"),
        ("queued.max.request.bytes=5", "queued.max.request.bytes must be larger or equal to"),
        ("replica.fetch.wait.max.ms=60000", "greater than or equal to replica.fetch.wait.max.ms"),
        ("log.cleaner.dedupe.buffer.size=1000", "must be at least 1MB per cleaner thread"),
    ],
)
def test_values_that_do_not_go_together_are_named(given: str, sentence: str) -> None:
    """Combinations that KafkaConfig of Apache Kafka 4.3.1 was seen to refuse."""
    flags = dict(pair.split("=") for pair in given.split(" "))
    with pytest.raises(InvalidConfig) as refused:
        resolve(flags, {})
    assert sentence in str(refused.value)


def test_variables_that_kubernetes_gives_are_no_settings() -> None:
    links = {
        "SHOAL_PORT": "tcp://10.0.0.1:9092",
        "SHOAL_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "SHOAL_PORT_9092_TCP_ADDR": "10.0.0.1",
        "SHOAL_SERVICE_HOST": "10.0.0.1",
        "SHOAL_SERVICE_PORT_KAFKA": "9092",
        "SHOAL_BROKER_0_SERVICE_PORT": "9092",
        # The variables of the command line, in a pod that has both.
        "SHOAL_BOOTSTRAP_SERVERS": "10.0.0.1:9092",
    }
    assert config.from_environment(links) == {}


def test_a_file_may_name_environment_variables() -> None:
    """KIP-887's `${env:NAME}`, so that brokers with different addresses can share one file."""
    text = "listeners=A://:1\nlistener.security.protocol.map=A:PLAINTEXT\n"
    text += "advertised.listeners=A://${env:NODE_IP}:${env:PORT_OUTSIDE}\n"
    found = resolve({}, {"NODE_IP": "10.0.0.7", "PORT_OUTSIDE": "31000"}, text, "x.properties")
    assert found.advertised["A"] == ("A", "10.0.0.7", 31000)
    with pytest.raises(InvalidConfig, match="variable PORT_OUTSIDE is not set"):
        resolve({}, {"NODE_IP": "10.0.0.7"}, text, "x.properties")


def test_a_file_may_name_files(tmp_path: Path) -> None:
    """KIP-297's references to files, so that no secret is in the file of settings. References in
    what they name are not followed."""
    (tmp_path / "key").write_text("s3cret ${env:NO}\n")
    (tmp_path / "more").write_text("key=other\n")
    name = "delegation.token.secret.key"
    for reference, value in (
        (f"${{directory:{tmp_path}:key}}", "s3cret ${env:NO}"),
        (f"${{file:{tmp_path}/more:key}}", "other"),
        ("${directory:no reference}", "${directory:no reference}"),
    ):
        found = resolve({}, {}, f"{name}={reference}\n", "x.properties")
        assert found[name] == value
    with pytest.raises(InvalidConfig, match=r"cannot be read: .* Create the file, .* x.properties"):
        resolve({}, {}, f"{name}=${{directory:{tmp_path}:absent}}\n", "x.properties")
    with pytest.raises(InvalidConfig, match=r"needs absent of .*more, which does not have it"):
        resolve({}, {}, f"{name}=${{file:{tmp_path}/more:absent}}\n", "x.properties")


def test_properties_are_javas() -> None:
    text = "# no\n! no\n a=1\nb : 2\nc 3\nd=x\\\n   y\ne=\\u0041\\tz\nf\ng\\=h=i  \n\n"
    assert dict(parse_properties(text)) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "xy",
        "e": "A\tz",
        "f": "",
        "g=h": "i",
    }


def test_addresses() -> None:
    assert config.parse_endpoint("listeners", "PLAINTEXT://[::1]:9092") == (
        "PLAINTEXT",
        "::1",
        9092,
    )
    assert config.parse_endpoint("listeners", ":9092") == ("PLAINTEXT", "", 9092)
    assert config.format_address("::1", 9092) == "[::1]:9092"
    assert config.format_address("", 9092) == "0.0.0.0:9092"
    assert config.format_address("a", 9092) == "a:9092"
    with pytest.raises(InvalidConfig):
        config.parse_endpoint("listeners", "a:70000")


def test_configs_of_single_listeners() -> None:
    """A variable has `_` where the listener's name may have `-`."""
    listeners = "MY-TLS://127.0.0.1:1,IN_SIDE://127.0.0.1:2"
    text = f"listeners={listeners}\nlistener.security.protocol.map=MY-TLS:SSL,IN_SIDE:sasl_ssl\n"
    text += "listener.name.my-tls.ssl.protocol=TLSv1.2\n"
    text += "listener.name.in_side.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256\n"
    environment = {
        "SHOAL_LISTENER_NAME_MY_TLS_SSL_CIPHER_SUITES": "A,B",
        "SHOAL_LISTENER_NAME_MY_TLS_SSL_PROTOCOL": "TLSv1.3",
        "SHOAL_LISTENER_NAME_IN_SIDE_SCRAM_SHA_256_SASL_LOGIN_READ_TIMEOUT_MS": "5",
    }
    found = resolve({}, environment, text, "x.properties")
    assert found.explicit.keys() >= {
        "listener.name.my-tls.ssl.cipher.suites",
        "listener.name.in_side.scram-sha-256.sasl.login.read.timeout.ms",
    }
    security = make_cluster_config(found).security
    tls, sasl = security["MY-TLS"], security["IN_SIDE"]
    assert (tls.protocol, sasl.protocol) == (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)
    assert tls.get_value("ssl.protocol") == "TLSv1.3"
    assert tls.get_value("ssl.cipher.suites") == ("A", "B")
    assert sasl.get_value("ssl.cipher.suites") == ()
    assert sasl.get_value("sasl.login.read.timeout.ms", "SCRAM-SHA-256") == 5
    assert sasl.get_value("sasl.login.read.timeout.ms", "PLAIN") is None


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ({}, "sasl.enabled.mechanisms is not set, and Kafka's default GSSAPI is not supported"),
        ({"sasl.enabled.mechanisms": "PLAIN,GSSAPI"}, "the SASL mechanism GSSAPI is not supported"),
        (
            {
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.a.sasl.enabled.mechanisms": "GSSAPI",
            },
            "the SASL mechanism GSSAPI is not supported",
        ),
        ({"listener.name.a.sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms is empty"),
    ],
)
def test_sasl_listeners_need_a_mechanism(own: dict[str, str], problem: str) -> None:
    flags = {"listeners": "A://127.0.0.1:1", "listener.security.protocol.map": "A:SASL_PLAINTEXT"}
    with pytest.raises(InvalidConfig) as refused:
        make_cluster_config(resolve(flags | own, {}))
    assert str(refused.value) == (
        f"The listener A asks for SASL_PLAINTEXT, but {problem}. Set"
        " listener.name.a.sasl.enabled.mechanisms to one or more of PLAIN, SCRAM-SHA-256,"
        " SCRAM-SHA-512, OAUTHBEARER."
    )


def test_security_between_brokers() -> None:
    """security.inter.broker.protocol names the listener with the name of a protocol."""
    flags = {"listeners": "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:2"}
    tls = {"security.inter.broker.protocol": "SSL"}
    assert make_cluster_config(resolve(flags, {})).inter_broker == "PLAINTEXT"
    assert make_cluster_config(resolve(flags | tls, {})).inter_broker == "SSL"
    with pytest.raises(InvalidConfig, match="Only one of"):
        make_cluster_config(resolve(flags | tls | {"inter.broker.listener.name": "SSL"}, {}))
    with pytest.raises(InvalidConfig, match="protocol is SSL, which is not in listeners: name one"):
        make_cluster_config(resolve({"listeners": "PLAINTEXT://127.0.0.1:1"} | tls, {}))


@pytest.mark.parametrize(
    ("listeners", "controllers", "protocols", "expected"),
    [
        ("PLAINTEXT://:1,C://:2", "C", None, {"PLAINTEXT": "PLAINTEXT", "C": "PLAINTEXT"}),
        ("SSL://:1,C://:2", "C", None, None),
        ("A://:1,C://:2", "C", "A:SSL,C:SASL_SSL", {"A": "SSL", "C": "SASL_SSL"}),
        ("A://:1,C://:2", "C", "A:SSL", None),
        ("A://:1", "C", "A:SSL", None),
    ],
)
def test_protocols_of_controllers(
    listeners: str, controllers: str, protocols: str | None, expected: dict[str, str] | None
) -> None:
    """As KafkaConfig's `effectiveListenerSecurityProtocolMap`."""
    flags = {
        "node.id": "1",
        "process.roles": "broker",
        "listeners": listeners,
        "controller.listener.names": controllers,
        "controller.quorum.bootstrap.servers": "h:2",
        "sasl.enabled.mechanisms": "PLAIN",
    }
    if protocols is not None:
        flags["listener.security.protocol.map"] = protocols
    if expected is None:
        with pytest.raises(InvalidConfig, match="C has no security protocol"):
            make_cluster_config(resolve(flags, {}))
    else:
        found = make_cluster_config(resolve(flags, {})).security
        assert {name: security.protocol.name for name, security in found.items()} == expected


@pytest.mark.parametrize(
    ("listeners", "problem"),
    [
        ("PLAINTEXT://127.0.0.1:9092", None),
        ("PLAINTEXT://127.8.0.1:9092", None),
        ("PLAINTEXT://localhost:9092", None),
        ("PLAINTEXT://[::1]:9092", None),
        ("PLAINTEXT://[::ffff:127.0.0.1]:9092", None),
        ("SSL://:9092,SASL_SSL://:1", None),
        ("PLAINTEXT://:9092", "0.0.0.0:9092"),
        ("PLAINTEXT://[::]:9092", "[::]:9092"),
        ("PLAINTEXT://10.0.0.1:9092", "10.0.0.1:9092"),
        ("PLAINTEXT://one.example:9092", "neither encrypted nor authenticated"),
        ("SASL_PLAINTEXT://:9092", "SASL_PLAINTEXT is not encrypted. Give it SASL_SSL in"),
        ("PLAINTEXT://127.0.0.1:1,SASL_PLAINTEXT://:9092", "listener SASL_PLAINTEXT at"),
    ],
)
def test_listeners_without_encryption_stay_on_this_host(
    listeners: str, problem: str | None
) -> None:
    flags = {"listeners": listeners}
    if problem is None:
        config.check_exposure(resolve(flags, {}))
        return
    with pytest.raises(InvalidConfig) as refused:
        config.check_exposure(resolve(flags, {}))
    assert problem in str(refused.value)
    assert "--insecure (shoal.insecure.listeners.enable=true)" in str(refused.value)
    config.check_exposure(resolve(flags, {"SHOAL_INSECURE_LISTENERS_ENABLE": "true"}))
