"""Delegation tokens of executors: what they are made of, extended by, and replaced with."""

from __future__ import annotations

import pickle

import pytest
from shoal_spark.options import ConnectionOptions, InvalidOption, SourceOptions, TokenLogin
from shoal_spark.reader import ShareGroupReader, ShareGroupTask

PLANTED = "pl4nted-s3cret"
OPTIONS = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "group.id": "g",
    "subscribe": "t",
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "SCRAM-SHA-256",
    "kafka.sasl.username": "eve",
    "kafka.sasl.password": PLANTED,
}
TOKEN = TokenLogin("SCRAM-SHA-512", "an-id", "aG1hYw==")


def options(**given: str) -> SourceOptions:
    return SourceOptions.from_options(
        {**OPTIONS, **{k.replace("_", "."): v for k, v in given.items()}}
    )


def test_a_token_takes_the_place_of_the_login() -> None:
    connection = options(kafka_client_id="jobs").connection
    with_token = connection.with_token(TOKEN)
    security = with_token.settings.security
    assert (security.username, security.is_token, security.mechanism) == (
        "an-id",
        True,
        "SCRAM-SHA-512",
    )
    assert security.password == TOKEN.password
    assert with_token.settings.client_id == "jobs"
    assert PLANTED not in str(with_token.properties)
    assert TOKEN.password not in repr(with_token) + repr(TOKEN) + repr(ShareGroupTask((), TOKEN))
    # The same for a login that is in other properties.
    jaas = f'x.ScramLoginModule required username="eve" password="{PLANTED}";'
    other = ConnectionOptions(
        "a:1", (("sasl.jaas.config", jaas), ("security.protocol", "SASL_SSL"))
    )
    assert PLANTED not in str(other.with_token(TOKEN).properties)
    assert other.with_token(TOKEN).settings.security.protocol == "SASL_SSL"


def test_executors_get_no_password_if_tokens_are_sure() -> None:
    for given, has_password in ((("true", False)), ("", True), ("false", True)):
        found = options(**({"delegation_token_enable": given} if given else {}))
        copy = pickle.dumps(ShareGroupReader(found))
        assert (PLANTED.encode() in copy) is has_password
        # The driver's own copy keeps it.
        assert PLANTED in str(found.connection.properties)


def test_tokens_need_sasl() -> None:
    plain = {k: v for k, v in OPTIONS.items() if ".sasl." not in k and ".security." not in k}
    with pytest.raises(InvalidOption, match=r"'delegation\.token\.enable' is true, and 'kafka"):
        SourceOptions.from_options({**plain, "delegation.token.enable": "true"})


@pytest.mark.parametrize(
    ("mechanism", "required", "may", "by"),
    [
        ("SCRAM-SHA-256", None, True, "SCRAM-SHA-256"),
        ("PLAIN", None, False, "SCRAM-SHA-512"),
        ("PLAIN", True, True, "SCRAM-SHA-512"),
    ],
)
def test_which_logins_use_tokens(mechanism: str, required: bool, may: bool, by: str) -> None:
    connection = options(kafka_sasl_mechanism=mechanism).connection
    assert connection.may_use_tokens(required) is may
    assert connection.token_mechanism == by
