"""Client properties of commands: where they come from, and that flags have no secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from shoal.cli.client_properties import (
    ClusterOptions,
    load_client_settings,
    parse_flags,
    read_environment,
)
from shoal.client.security import security
from shoal.client.settings import Settings, get_variable_name
from shoal.server import config

if TYPE_CHECKING:
    from pathlib import Path


def test_flags_then_the_environment_then_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "bootstrap.servers=a:1\nclient.id=file\nsecurity.protocol=SASL_SSL\n"
        "sasl.username=file\nsasl.password=of the file\n"
    )
    monkeypatch.setenv("SHOAL_CLIENT_CLIENT_ID", "environment")
    monkeypatch.setenv("SHOAL_CLIENT_SASL_USERNAME", "environment")
    found = load_client_settings(ClusterOptions(None, file), ["client.id=flag"])
    assert found.bootstrap == (("a", 1),)
    assert found.client_id == "flag"
    assert (found.security.username, found.security.password) == ("environment", "of the file")
    file.write_text(file.read_text().replace("of the file", "new"))
    assert found.security.reload().password == "new"
    assert load_client_settings(ClusterOptions("b:2", file), None).bootstrap == (("b", 2),)
    assert load_client_settings(ClusterOptions(), None).bootstrap == (("127.0.0.1", 9092),)


def test_a_program_reads_what_a_command_reads(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=a:1\nclient.id=file\nrequest.timeout.ms=5\n")
    pod = {"SHOAL_COMMAND_CONFIG": str(file), "SHOAL_CLIENT_CLIENT_ID": "environment"}
    found = Settings.from_environment(pod)
    assert found.bootstrap == (("a", 1),)
    assert (found.client_id, found.request_timeout_ms) == ("environment", 5)
    named = Settings.from_environment(pod | {"SHOAL_BOOTSTRAP_SERVERS": "b:2"})
    assert named.bootstrap == (("b", 2),)
    assert Settings.from_environment({}).bootstrap == (("127.0.0.1", 9092),)


def test_unknown_variables_are_refused() -> None:
    with pytest.raises(ValueError, match="Did you mean SHOAL_CLIENT_SASL_PASSWORD"):
        read_environment({"SHOAL_CLIENT_SASL_PASWORD": "x"})


def test_variables_of_services_and_brokers_are_not_properties() -> None:
    """Kubernetes sets variables for a Service named shoal-client, and pods of brokers have configs
    of brokers in their environment."""
    others = {
        "SHOAL_CLIENT_SERVICE_HOST": "10.0.0.1",
        "SHOAL_CLIENT_PORT_9092_TCP_ADDR": "10.0.0.1",
        "SHOAL_CLIENT_QUOTA_CALLBACK_CLASS": "",
        "SHOAL_LOG_RETENTION_MS": "1",
    }
    assert read_environment(others) == {}


def test_brokers_ignore_the_variables_of_clients() -> None:
    """`kubectl exec` runs commands with the environment of a broker."""
    assert config.from_environment({get_variable_name(name): "x" for name in security.NAMES}) == {}


@pytest.mark.parametrize("name", sorted(security.SECRETS))
def test_secrets_do_not_stand_on_the_command_line(name: str) -> None:
    value = 'x required password="pl4nted";' if name == "sasl.jaas.config" else "pl4nted"
    with pytest.raises(
        ValueError, match=f"Set the environment variable {get_variable_name(name)}"
    ) as caught:
        parse_flags([f"{name}={value}"])
    assert "pl4nted" not in str(caught.value)
    reference = value.replace("pl4nted", "${directory:/run/user:password}")
    assert parse_flags([f"{name}={reference}"]) == {name: reference}


def test_other_properties_may() -> None:
    flags = ["sasl.username=ann", 'sasl.jaas.config=x required username="ann";']
    assert parse_flags(flags).keys() == {"sasl.username", "sasl.jaas.config"}
