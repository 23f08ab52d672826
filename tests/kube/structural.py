"""A check of manifests against the schemas of custom resource definitions, without an API server.

It is strict: a field that the schema does not have is an error, where an API server only warns. It
does not evaluate CEL rules; tests on Kubernetes do.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

Manifest = dict[str, Any]
CRDS = Path(__file__).parents[2] / "crds"
#: Definitions are long: libyaml reads ours in 0.03 s, and Python in 0.3 s.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}
#: Fields of every object, which a definition's schema does not repeat.
META = ("apiVersion", "kind", "metadata")


@cache
def schemas(folder: Path = CRDS) -> dict[tuple[str, str], Manifest]:
    """Return the schemas of the served versions in a folder, by apiVersion and kind."""
    found = {}
    for file in sorted(folder.glob("*.yaml")):
        for crd in yaml.load_all(file.read_text(), Loader=LOADER):
            if not crd or crd["kind"] != "CustomResourceDefinition":
                continue
            group, kind = crd["spec"]["group"], crd["spec"]["names"]["kind"]
            for version in crd["spec"]["versions"]:
                key = (f"{group}/{version['name']}", kind)
                found[key] = version["schema"]["openAPIV3Schema"]
    return found


def errors(manifest: Manifest, folder: Path = CRDS) -> list[str]:
    """Return what is wrong with a manifest, each with the path of the field."""
    key = (manifest["apiVersion"], manifest["kind"])
    schema = schemas(folder).get(key)
    if schema is None:
        return [f"no definition has {key[0]} {key[1]}"]
    rest = {name: value for name, value in manifest.items() if name not in META}
    properties = {k: v for k, v in schema["properties"].items() if k not in META}
    top = {**schema, "properties": properties}
    top["required"] = [name for name in schema.get("required", ()) if name not in META]
    return check(rest, top)


def check(value: Any, schema: Manifest, path: str = "") -> list[str]:
    """Return what is wrong with a value, each with the path of the field."""
    return list(_check(value, schema, path))


def _check(value: Any, schema: Manifest, path: str) -> Iterator[str]:
    kind = schema.get("type")
    # A schema without a type accepts numbers and text, or anything.
    if kind is None or (value is None and schema.get("nullable")):
        return
    wrong_bool = isinstance(value, bool) and kind != "boolean"
    if wrong_bool or not isinstance(value, TYPES[kind]):
        yield f"{path}: {value!r} is no {kind}"
    elif isinstance(value, dict):
        yield from _check_object(value, schema, path)
    elif isinstance(value, list):
        yield from _within(len(value), schema, ("minItems", "maxItems"), path)
        for number, item in enumerate(value):
            yield from _check(item, schema.get("items", {}), f"{path}[{number}]")
    else:
        yield from _check_scalar(value, schema, path)


def _check_scalar(value: Any, schema: Manifest, path: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if isinstance(value, str):
        yield from _within(len(value), schema, ("minLength", "maxLength"), path)
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{path}: {value!r} does not match {schema['pattern']}"
    else:
        yield from _within(value, schema, ("minimum", "maximum"), path)


def _check_object(value: Manifest, schema: Manifest, path: str) -> Iterator[str]:
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}: required".lstrip(".")
    for name, item in value.items():
        where = f"{path}.{name}".lstrip(".")
        if name in properties:
            yield from _check(item, properties[name], where)
        elif isinstance(others, dict):
            yield from _check(item, others, where)
        elif not others and not schema.get("x-kubernetes-preserve-unknown-fields"):
            yield f"{where}: the schema has no such field"


def _within(size: float, schema: Manifest, limits: tuple[str, str], path: str) -> Iterator[str]:
    low, high = limits
    if low in schema and size < schema[low]:
        yield f"{path}: {size} is less than {low} {schema[low]}"
    if high in schema and size > schema[high]:
        yield f"{path}: {size} is more than {high} {schema[high]}"
