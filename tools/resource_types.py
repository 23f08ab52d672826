"""Generate the types of custom resources from their definitions:
`python tools/resource_types.py` writes the modules of `operator/shoal_operator/model/resources`.

The API server validates a resource against its definition and fills in the defaults before the
operator reads it, so the definitions are the only source of these types (ADR 172). They exist for
mypy alone: at run time a resource is a plain dict.
"""

from __future__ import annotations

import re
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "operator" / "shoal_operator" / "model" / "resources"
#: The fields that the operator's `StatusWriter` sets in every status.
_OF_WRITER = ("observedGeneration", "conditions")
_SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}


def format_type(name: str, schema: Mapping[str, Any]) -> str:
    """Return the annotation of a value. `name` is the class of an object with known fields."""
    kind = schema.get("type")
    if schema.get("x-kubernetes-int-or-string"):
        return "int | str"
    if kind == "array":
        return f"list[{format_type(name, schema['items'])}]"
    if kind == "object":
        if schema.get("properties"):
            return name
        values = schema.get("additionalProperties")
        return f"dict[str, {format_type(name, values) if isinstance(values, dict) else 'Any'}]"
    return _SCALARS.get(str(kind), "Any")


def find_object(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the object with known fields that a value is, or that its items are."""
    inner = schema
    while inner.get("type") == "array" or isinstance(inner.get("additionalProperties"), dict):
        inner = inner["items"] if inner.get("type") == "array" else inner["additionalProperties"]
    return inner if inner.get("properties") else None


def format_classes(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the classes of an object and of those within it, the inner ones first.

    A field that has to be there, or that has a default, is always there.
    """
    fields = schema["properties"]
    for field, value in fields.items():
        if (inner := find_object(value)) is not None:
            yield from format_classes(_format_name(name, field), inner)
    lines: list[str] = []
    for field, value in fields.items():
        annotation = format_type(_format_name(name, field), value)
        always = field in schema.get("required", ()) or "default" in value
        lines.append(f"{field}: {annotation if always else f'NotRequired[{annotation}]'}")
    if any(map(iskeyword, fields)):  # A class cannot have such a field, but a call can name it.
        pairs = (line.split(": ", 1) for line in lines)
        items = "".join(f'        "{field}": {annotation},\n' for field, annotation in pairs)
        yield f'{name} = TypedDict(\n    "{name}",\n    {{\n{items}    }},\n)'
    else:
        yield "\n".join([f"class {name}(TypedDict):", *(f"    {line}" for line in lines)])


def format_patch(name: str, schema: Mapping[str, Any]) -> str:
    """Return the class of a change of a status: the fields to set, or to remove by None."""
    annotations = {
        field: format_type(_format_name(name, field), value)
        for field, value in schema["properties"].items()
        if field not in _OF_WRITER
    }
    lines = (f"    {field}: {annotation} | None" for field, annotation in annotations.items())
    return "\n".join([f"class {name}Patch(TypedDict, total=False):", *lines])


def _format_name(name: str, field: str) -> str:
    return name + field[0].upper() + field[1:]


def format_module(definition: Mapping[str, Any]) -> str:
    """Return the text of the module of a CustomResourceDefinition."""
    kind = definition["spec"]["names"]["kind"]
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    parts = {part: schema["properties"][part] for part in ("spec", "status")}
    classes = [
        text for part, of in parts.items() for text in format_classes(f"{kind}{part.title()}", of)
    ]
    classes.append(format_patch(f"{kind}Status", parts["status"]))
    classes.append(
        f"class {kind}(TypedDict):\n"
        "    apiVersion: str\n"
        "    kind: str\n"
        "    metadata: dict[str, Any]\n"
        f"    spec: {kind}Spec\n"
        f"    status: NotRequired[{kind}Status]"
    )
    body = "\n\n\n".join(classes)
    return (
        f'"""The type of a {kind}: `tools/resource_types.py` generates it from the definition."""'
        "\n\n"
        "from __future__ import annotations\n\n"
        f"from typing import Any, NotRequired, TypedDict\n\n\n{body}\n"
    )


def format_file_name(kind: str) -> str:
    """Return the file of a kind's module: `queue_user.py` for QueueUser."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind).lower() + ".py"


def format_modules() -> dict[str, str]:
    """Return the text of each module by the name of its file."""
    definitions = [
        yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))
    ]
    return {
        format_file_name(definition["spec"]["names"]["kind"]): format_module(definition)
        for definition in definitions
    }


if __name__ == "__main__":
    for name, text in format_modules().items():
        (FOLDER / name).write_text(text)
