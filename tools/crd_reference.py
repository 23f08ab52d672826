"""Generate `docs/reference` from the custom resource definitions:

    python tools/crd_reference.py crds docs/reference

`kubectl explain` and these pages use the same source: the schemas in `crds/`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

#: A list whose fields are Kubernetes' own; its description explains the entries.
_CONDITIONS = "status.conditions"
_BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "maxItems": "at most {} items",
    "pattern": "matches `{}`",
}


def page(definition: Mapping[str, Any]) -> str:
    """Return the page of one CustomResourceDefinition in Markdown."""
    names, version = definition["spec"]["names"], definition["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    columns = ", ".join(c["name"] for c in version["additionalPrinterColumns"])
    short, category = names["shortNames"][0], names["categories"][0]
    lines = [
        f"# {names['kind']}",
        "",
        schema["description"],
        "",
        f"API version `{definition['spec']['group']}/{version['name']}`; `kubectl get {short}`, or "
        f"`kubectl get {category}` for all kinds of Shoal. `kubectl get` shows: {columns}.",
    ]
    if "scale" in version["subresources"]:
        lines += ["", f"It has the scale subresource: `kubectl scale {short}/NAME --replicas=N`."]
    if rules := list(_rules(schema, "")):
        lines += ["", *rules]
    for part in ("spec", "status"):
        lines += ["", f"## {part}", ""]
        lines += _rules(schema["properties"][part], "")
        lines += _rows(schema["properties"][part], part)
    return "\n".join(lines).rstrip() + "\n"


def _rows(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield a line for each field under `schema`, depth first."""
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        yield _row(here, field, name in required)
        if here == _CONDITIONS:
            continue
        yield from _rules(field, "  ")
        inner, mark = field, ""
        if field.get("type") == "array":
            inner, mark = field["items"], "[]"
        yield from _rows(inner, here + mark)


def _row(path: str, field: Mapping[str, Any], required: bool) -> str:
    notes = [_type(field)]
    if required:
        notes.append("required")
    if "default" in field and field["default"] not in ("", {}):
        notes.append(f"default `{_plain(field['default'])}`")
    if "enum" in field:
        notes.append("one of " + ", ".join(f"`{v}`" for v in field["enum"]))
    notes += [text.format(field[key]) for key, text in _BOUNDS.items() if key in field]
    text = field.get("description", "")
    return f"* `{path}` ({'; '.join(notes)})" + (f": {text}" if text else "")


def _rules(schema: Mapping[str, Any], indent: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", []):
        yield f"{indent}* Rule: {rule['message']}."


def _type(field: Mapping[str, Any]) -> str:
    if field.get("type") == "array":
        return "list"
    if isinstance(field.get("additionalProperties"), Mapping):
        return "map"
    return str(field.get("type", "integer or string"))


def _plain(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).strip().removesuffix("...").strip()


def pages(crds: Path) -> dict[str, str]:
    """Return every page by file name; `crds` is the directory of the definitions."""
    made = {}
    for file in sorted(crds.glob("*.yaml")):
        definition = yaml.safe_load(file.read_text())
        made[f"{definition['spec']['names']['singular']}.md"] = page(definition)
    return made


def main() -> None:
    """Write the pages; the arguments are the two directories."""
    if len(sys.argv) != 3:
        sys.exit("usage: python tools/crd_reference.py CRDS DOCS")
    source, target = map(Path, sys.argv[1:])
    for name, text in pages(source).items():
        (target / name).write_text(text)


if __name__ == "__main__":
    main()
