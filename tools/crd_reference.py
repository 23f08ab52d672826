"""Generate `docs/reference` from the custom resource definitions:

    python tools/crd_reference.py crds docs/reference

`kubectl explain` and these pages use the same source: the schemas in `crds/`. Examples of fields
are values of the manifests in `examples/`, so that each of them is one that works. Fields that
these do not set have theirs in `tools/crd_examples.yaml`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).parents[1] / "examples"
#: Examples of other fields: by kind, or for any, and then by the end of the path.
FURTHER = Path(__file__).parent / "crd_examples.yaml"
#: Values of fields by their paths, such as `spec.topics`.
Examples = dict[str, Any]
#: The longest example of a field, in characters.
_EXAMPLE_LENGTH_MAX = 100
#: A list whose fields are Kubernetes' own; its description explains the entries.
_CONDITIONS = "status.conditions"
_BEGIN = re.compile(r"^apiVersion: shoal\.dev/", re.MULTILINE)
_BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "maxItems": "at most {} items",
    "pattern": "matches `{}`",
}


def build_page(definition: Mapping[str, Any], manifests: list[str]) -> str:
    """Return the page of one CustomResourceDefinition in Markdown. `manifests` are examples of its
    kind as YAML; the page shows the first one.
    """
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
    if rules := list(_list_rules(schema, "")):
        lines += ["", *rules]
    if manifests:
        lines += ["", "## Example", "", "```yaml", manifests[0].rstrip(), "```"]
    examples = find_examples(definition, manifests)
    for part in ("spec", "status"):
        lines += ["", f"## {part}", ""]
        lines += _list_rules(schema["properties"][part], "")
        lines += _build_rows(schema["properties"][part], part, examples)
    return "\n".join(lines).rstrip() + "\n"


def find_examples(definition: Mapping[str, Any], manifests: list[str]) -> Examples:
    """Return an example of each field of a definition's `spec`, by path: the first value that a
    manifest sets, if it fits into a line, or one of `FURTHER`, or one that follows from the schema.
    """
    further = yaml.safe_load(FURTHER.read_text())
    by_end = further["any"] | further.get(definition["spec"]["names"]["kind"], {})
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    examples = _read_values(manifests)
    # Depth first, so that this comes to the fields of an object before it comes to the object.
    for path, field in reversed(list(iterate_fields(schema["properties"]["spec"], "spec"))):
        if format_example(path, field, examples):
            continue
        parts = path.split(".")
        ends = [".".join(parts[start:]) for start in range(1, len(parts))]
        end = next((end for end in ends if end in by_end), None)
        examples[path] = _derive(path, field, examples) if end is None else by_end[end]
    return examples


def _derive(path: str, field: Mapping[str, Any], examples: Examples) -> Any:
    """Return the first value that is not the default or, for an object, what it has to have, or
    else its first field; None if the schema does not say enough."""
    if field.get("type") == "array":
        return [_derive(f"{path}[]", field["items"], examples)]
    values = [True, False] if field.get("type") == "boolean" else field.get("enum", [])
    if values:
        return next(value for value in values if value != field.get("default"))
    fields = field.get("required") or list(field.get("properties", {}))[:1]
    return {name: examples[f"{path}.{name}"] for name in fields} or None


def iterate_fields(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the path and the schema of each field, depth first."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from iterate_fields(field, f"{path}.{name}")
        yield from iterate_fields(field.get("items", {}), f"{path}.{name}[]")


def _read_values(manifests: list[str]) -> Examples:
    """Return the first value of each field that the manifests set."""
    examples: Examples = {}

    def note(value: Any, path: str) -> None:
        if path:
            examples.setdefault(path, value)
        if isinstance(value, dict):
            for name, inner in value.items():
                note(inner, f"{path}.{name}".lstrip("."))
        elif isinstance(value, list):
            for inner in value:
                note(inner, f"{path}[]")

    for manifest in manifests:
        note({"spec": yaml.safe_load(manifest).get("spec", {})}, "")
    return examples


def _build_rows(schema: Mapping[str, Any], path: str, examples: Examples) -> Iterator[str]:
    """Yield a line for each field under `schema`, depth first."""
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        yield _build_row(here, field, name in required, examples)
        if here == _CONDITIONS:
            continue
        yield from _list_rules(field, "  ")
        inner, mark = field, ""
        if field.get("type") == "array":
            inner, mark = field["items"], "[]"
        yield from _build_rows(inner, here + mark, examples)


def _build_row(path: str, field: Mapping[str, Any], required: bool, examples: Examples) -> str:
    notes = [_get_type(field)]
    if required:
        notes.append("required")
    if "default" in field and field["default"] not in ("", {}):
        notes.append(f"default `{_format_plain(field['default'])}`")
    if "enum" in field:
        notes.append("one of " + ", ".join(f"`{v}`" for v in field["enum"]))
    notes += [text.format(field[key]) for key, text in _BOUNDS.items() if key in field]
    text = field.get("description", "")
    if example := format_example(path, field, examples):
        text += f" Example: `{example}`."
    anchor = path.replace("[]", "")
    row = f'* <a id="{anchor}"></a>[`{path}`](#{anchor}) ({"; ".join(notes)})'
    return row + (f": {text.strip()}" if text else "")


def format_example(path: str, field: Mapping[str, Any], examples: Examples) -> str:
    """Return the field with a value of an example, as one line of YAML; "" without one."""
    value = examples.get(path)
    if value is None or value == field.get("default") or (value == {} and field.get("properties")):
        return ""
    line = _format_plain({path.rpartition(".")[2]: value})[1:-1]
    fits = len(line) <= _EXAMPLE_LENGTH_MAX and "\n" not in line and "`" not in line
    return line if fits else ""


def _list_rules(schema: Mapping[str, Any], indent: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", []):
        yield f"{indent}* Rule: {rule['message']}."


def _get_type(field: Mapping[str, Any]) -> str:
    if field.get("type") == "array":
        return "list"
    if isinstance(field.get("additionalProperties"), Mapping):
        return "map"
    return str(field.get("type", "integer or string"))


def _format_plain(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).strip().removesuffix("...").strip()


def read_manifests() -> dict[str, list[str]]:
    """Return the examples by kind, each as YAML, those with a number in their name first."""
    files = sorted(EXAMPLES.rglob("*.yaml"), key=lambda file: (file.parent != EXAMPLES, file))
    manifests: dict[str, list[str]] = {}
    for file in files:
        for text in re.split(r"^---$", file.read_text(), flags=re.MULTILINE):
            # The comment of a file says how to use it there.
            manifest = text[match.start() :] if (match := _BEGIN.search(text)) else ""
            if manifest:
                manifests.setdefault(yaml.safe_load(manifest)["kind"], []).append(manifest)
    return manifests


def build_pages(crds: Path) -> dict[str, str]:
    """Return every page by file name; `crds` is the directory of the definitions."""
    made = {}
    manifests = read_manifests()
    for file in sorted(crds.glob("*.yaml")):
        definition = yaml.safe_load(file.read_text())
        made[f"{definition['spec']['names']['singular']}.md"] = build_page(
            definition, manifests.get(definition["spec"]["names"]["kind"], [])
        )
    return made


def main() -> None:
    """Write the pages; the arguments are the two directories."""
    if len(sys.argv) != 3:
        sys.exit("usage: python tools/crd_reference.py CRDS DOCS")
    source, target = map(Path, sys.argv[1:])
    for name, text in build_pages(source).items():
        (target / name).write_text(text)


if __name__ == "__main__":
    main()
