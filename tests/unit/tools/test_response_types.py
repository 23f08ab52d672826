"""The types of responses are those of the schemas, which `tools/response_types.py` reads."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import response_types
import shoal
from shoal.protocol.api import ApiKey
from shoal.security.requirements import format_api_name
from shoal.server.handlers import HANDLERS


def test_the_modules_are_those_of_the_schemas() -> None:
    files = {path.stem: path.read_text() for path in response_types.FOLDER.glob("*.py")}
    del files["__init__"]
    assert files == response_types.format_modules(), "make docs"


def test_a_type_has_the_fields_of_all_versions() -> None:
    """Version 0 has the names of topics, later ones their ids, and names that may be null."""
    topic = response_types.collect_structs(ApiKey.METADATA)["MetadataResponseTopic"]
    shown = {name: response_types.format_type(ApiKey.METADATA, f) for name, f in topic.items()}
    assert (shown["name"], shown["topic_id"]) == ("str | None", "UUID | None")
    assert shown["partitions"] == "Sequence[MetadataResponsePartition]"
    assert response_types.format_name(ApiKey.DESCRIBE_CLUSTER, "Broker") == "DescribeClusterBroker"


def test_each_row_of_the_table_of_apis_has_a_type_that_a_handler_names() -> None:
    keys = [key for _, api_keys in response_types.MODULES.values() for key in api_keys]
    assert Counter([*keys, *response_types.ENCODED]) == Counter(list(HANDLERS)), "extend MODULES"
    (package,) = map(Path, shoal.__path__)
    handlers = "".join(path.read_text() for path in (package / "server/handlers").rglob("*.py"))
    quorum = (package / "quorum/wire.py").read_text()  # It builds the responses of Raft's requests.
    used = set(re.findall(r"\b\w+\.(\w+Response)\b", handlers + quorum))
    assert {f"{format_api_name(key)}Response" for key in keys} - used == set()
