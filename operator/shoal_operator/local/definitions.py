"""The custom resource definitions, from which all else follows: names, schemas, defaults, columns.

They are the files that `kubectl apply -f crds` installs.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal_operator.model.names import Manifest

_PACKAGE = Path(__file__).resolve().parent
#: The folder in a wheel (`wheel_hook`), and in a source tree.
FOLDERS = (_PACKAGE / "crds", _PACKAGE.parents[2] / "crds")
PRESERVE = "x-kubernetes-preserve-unknown-fields"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `get`; one of a higher priority is only in `-o wide`."""

    name: str
    path: str
    type: str
    priority: int


@dataclass(frozen=True, slots=True)
class Definition:
    """A kind as its definition describes it. `resource` is its full name: `queues.shoal.dev`."""

    kind: str
    plural: str
    singular: str
    words: frozenset[str]
    resource: str
    api_version: str
    schema: Manifest
    columns: tuple[Column, ...]
    #: The field of the replicas that `kubectl scale` sets; empty without one.
    replicas_path: str = ""

    @property
    def full_singular(self) -> str:
        """The name before the slash in the output of `apply`."""
        group = self.resource.partition(".")[2]
        return f"{self.singular}.{group}" if group else self.singular


def _define(kind: str, short: str, *columns: tuple[str, str, str]) -> Definition:
    """Return the definition of a kind of Kubernetes that is stored, but has no schema here."""
    singular = kind.lower()
    words = frozenset({singular, f"{singular}s", *short.split()})
    shown = tuple(Column(*column, 0) for column in columns)
    return Definition(kind, f"{singular}s", singular, words, f"{singular}s", "v1", {}, shown)


_AGE = ("Age", ".metadata.creationTimestamp", "date")
#: Kinds of Kubernetes that the commands show and delete. `all` is without them. What a path of
#: `summary` has, `printing` counts.
_OF_KUBERNETES = (
    _define(
        "Secret",
        "",
        ("Type", ".summary.type", "string"),
        ("Data", ".summary.data", "integer"),
        _AGE,
    ),
    _define("ConfigMap", "cm", ("Data", ".summary.data", "integer"), _AGE),
    _define(
        "Pod",
        "po",
        ("Ready", ".summary.ready", "string"),
        ("Status", ".summary.status", "string"),
        ("Restarts", ".summary.restarts", "integer"),
        _AGE,
    ),
    _define(
        "Event",
        "ev",
        ("Last Seen", ".lastTimestamp", "date"),
        ("Type", ".type", "string"),
        ("Reason", ".reason", "string"),
        ("Object", ".summary.object", "string"),
        ("Message", ".message", "string"),
    ),
)


def _load_file(file: Path) -> Definition:
    # The C loader takes a tenth of the time.
    crd = yaml.load(file.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    names, group = crd["spec"]["names"], crd["spec"]["group"]
    version = next(v for v in crd["spec"]["versions"] if v["storage"])
    plural, singular = names["plural"], names["singular"]
    words = {plural, singular, f"{plural}.{group}", f"{singular}.{group}"}
    columns = [
        Column(c["name"], c["jsonPath"], c["type"], c.get("priority", 0))
        for c in version.get("additionalPrinterColumns", [])
    ]
    return Definition(
        names["kind"],
        plural,
        singular,
        frozenset({*words, *names.get("shortNames", ())}),
        f"{plural}.{group}",
        f"{group}/{version['name']}",
        version["schema"]["openAPIV3Schema"],
        tuple(columns),
        version.get("subresources", {}).get("scale", {}).get("specReplicasPath", ""),
    )


@cache
def load_definitions() -> dict[str, Definition]:
    """Return the definitions by kind."""
    folder = next(folder for folder in FOLDERS if folder.is_dir())
    definitions = [_load_file(file) for file in sorted(folder.glob("*.yaml"))]
    return {definition.kind: definition for definition in definitions}


def find_definition(word: str) -> Definition | None:
    """Return the definition of a kind by any of its names, in any case, as kubectl does."""
    lower, definitions = word.lower(), (*load_definitions().values(), *_OF_KUBERNETES)
    return next((definition for definition in definitions if lower in definition.words), None)


def fill_defaults(value: Any, schema: Manifest) -> Any:
    """Return the value with the defaults of its schema, as the API server stores it: also in
    objects that are defaults themselves, and without nulls where the schema does not allow them."""
    if isinstance(value, dict):
        others = schema.get("additionalProperties")
        schemas = {name: _get_property(schema, others, name) for name in value}
        filled = {
            name: fill_defaults(item, schemas[name])
            for name, item in value.items()
            if item is not None or schemas[name].get("nullable") or not schemas[name]
        }
        for name, property_schema in schema.get("properties", {}).items():
            if "default" in property_schema and name not in filled:
                filled[name] = fill_defaults(
                    copy.deepcopy(property_schema["default"]), property_schema
                )
        return filled
    if isinstance(value, list):
        return [fill_defaults(item, schema.get("items", {})) for item in value]
    return value


def _get_property(schema: Manifest, others: Any, name: str) -> Manifest:
    own = schema.get("properties", {}).get(name)
    return own if own is not None else others if isinstance(others, dict) else {}


def list_unknown(value: Any, schema: Manifest, path: str = "") -> Iterator[str]:
    """Yield the paths of fields that the schema does not have, and that are not null. Where it
    keeps unknown fields, it keeps those of the object itself, but not of its known fields."""
    if isinstance(value, list) and ("items" in schema or not schema.get(PRESERVE)):
        for number, item in enumerate(value):
            yield from list_unknown(item, schema.get("items", {}), f"{path}[{number}]")
    if not isinstance(value, dict):
        return
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name, item in value.items():
        item_path = f"{path}.{name}".lstrip(".")
        if name in properties or isinstance(others, dict):
            yield from list_unknown(item, properties.get(name, others), item_path)
        elif item is not None and not others and not schema.get(PRESERVE):
            yield item_path
