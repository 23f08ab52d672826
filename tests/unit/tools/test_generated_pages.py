"""`docs/compat.md` matches the table of handlers, and the references of commands and of Python
names match the code. The examples of configs are valid. Tests of the other pages that `make docs`
makes are beside those of the configs and of the custom resources."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import compat_page
import config_page
import pytest
import shoal.client
import shoal.worker
from shoal.metadata.config_keys import ConfigEffect, ConfigKey
from shoal.metadata.configs import BROKER, GROUP, TOPIC
from shoal_operator.local.definitions import load_definitions
from shoal_operator.local.validation import prepare
from shoal_operator.model import broker_config, groups

if TYPE_CHECKING:
    from shoal_operator.model.names import Manifest

ROOT = Path(__file__).parents[3]


def test_the_page_of_apis_is_made_of_the_table_of_handlers() -> None:
    assert (ROOT / "docs" / "compat.md").read_text() == compat_page.build_page(), "make docs"


def test_the_page_of_commands_is_made_of_their_help() -> None:
    """In a process of its own: it imports all commands, and reads no setting of this one."""
    made = subprocess.run(
        [sys.executable, ROOT / "tools" / "cli_page.py"],
        capture_output=True,
        text=True,
        check=True,
        env={},
    ).stdout
    assert (ROOT / "docs" / "reference" / "cli.md").read_text() == made, "make docs"


def test_the_reference_has_each_public_name_of_client_and_worker() -> None:
    text = (ROOT / "docs" / "reference" / "python.md").read_text()
    listed = re.findall(r"^::: (shoal\.(?:client|worker)\.\w+)$", text, re.MULTILINE)
    names = [f"shoal.client.{name}" for name in shoal.client.__all__]
    names += [f"shoal.worker.{name}" for name in shoal.worker.__all__]
    listed.append("shoal.client.ErrorCode")  # In words: it is kio's.
    assert sorted(listed) == sorted(names)


@pytest.mark.parametrize(("kind", "table"), [("broker", BROKER), ("topic", TOPIC)])
def test_the_example_of_a_config_is_a_value_of_it(kind: str, table: dict[str, ConfigKey]) -> None:
    """Without one, an applied config would have an empty example."""
    assert config_page.FURTHER[kind].keys() <= table.keys()
    for key in table.values():
        is_reserved = kind == "broker" and broker_config.find_replacement(key.name)
        if key.effect is ConfigEffect.APPLIED and not is_reserved:
            text = config_page.choose_value(key, kind)
            assert text or key.name in config_page.OF_ONE_BROKER, key.name
            key.parse(text)
            assert not broker_config.find_malformed({key.name: text})


def test_the_spec_beside_a_config_of_a_group_sets_it() -> None:
    """The API server takes it, and brokers get this config by it, and no other that is missing."""
    definition = load_definitions()["ShareGroup"]

    def build(spec: dict[str, object]) -> dict[str, str]:
        manifest: Manifest = {"apiVersion": definition.api_version, "kind": "ShareGroup"}
        manifest |= {"metadata": {"name": "workers"}, "spec": {"cluster": "main", **spec}}
        return groups.build_config(prepare(definition, manifest)["spec"])

    examples, without = config_page.FURTHER["group"], build({})
    settable = set(without)
    for name, (field, spec) in examples.items():
        configs = build(spec)
        assert configs[name] != without.get(name), name
        settable |= configs.keys()
        *path, last = field.split(".")
        for part in path:
            spec = spec[part]
        assert last in spec, f"{field} is not in the example of {name}"
    assert settable == examples.keys()
    shared = {n for n, key in GROUP.items() if "consumer." not in n and "streams." not in n}
    applied = {n for n in shared if GROUP[n].effect is ConfigEffect.APPLIED}
    assert applied - examples.keys() == {
        "share.assignment.interval.ms",
        "share.ordering.key.lookahead",
        "share.priority.lookahead",
    }
