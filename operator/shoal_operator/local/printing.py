"""Tables and descriptions of resources, with kubectl's columns, words and ages.

The columns are the definitions' own (`additionalPrinterColumns`).
"""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING, Any

from shoal_operator.local.api import dump_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.local.definitions import Definition
    from shoal_operator.model.names import Manifest

_STEP = re.compile(r"\.(\w+)|\[\?\(@\.(\w+)==\"([^\"]*)\"\)\]")
#: Between two columns.
GAP = "   "
NONE = "<none>"


def read_path(value: Any, path: str) -> Any:
    """Return what a JSONPath of the definitions selects: fields, and items by one of their fields;
    None if there is nothing."""
    position = 0
    while position < len(path):
        step = _STEP.match(path, position)
        assert step is not None, f"the definitions have the JSONPath {path}"
        name, key, key_value = step.groups()
        if name is not None:
            value = value.get(name) if isinstance(value, dict) else None
        else:
            items = value if isinstance(value, list) else []
            value = next((item for item in items if item.get(key) == key_value), None)
        position = step.end()
    return value


def format_age(stamp: str, now: datetime.datetime) -> str:
    """Return how long ago something was, as kubectl does: `45s`, `3m20s`, `5h12m`, `8d`."""
    seconds = max(0, int((now - datetime.datetime.fromisoformat(stamp)).total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d" if days < 730 else f"{days // 365}y"


def format_rows(
    definition: Definition,
    resources: Sequence[Mapping[str, Any]],
    now: datetime.datetime,
    *,
    wide: bool = False,
    prefix: bool = False,
    has_namespace: bool = False,
) -> list[list[str]]:
    """Return the rows of a table with its head. `prefix` puts the kind before the names, as kubectl
    does for several kinds."""
    columns = [c for c in definition.columns if wide or not c.priority]
    rows = [["NAME", *(c.name.upper() for c in columns)]]
    for resource in resources:
        name = resource["metadata"]["name"]
        row = [f"{definition.full_singular}/{name}" if prefix else name]
        shown = {**resource, "summary": summarize(resource)}
        for column in columns:
            value = read_path(shown, column.path)
            if value is None:
                row.append("" if column.type == "string" else NONE)
            elif column.type == "date":
                row.append(format_age(value, now))
            else:
                row.append(str(value).lower() if isinstance(value, bool) else str(value))
        rows.append(row)
    # kubectl's table of events has no names.
    rows = [row[1:] for row in rows] if definition.kind == "Event" else rows
    if has_namespace:
        namespaces = [resource["metadata"]["namespace"] for resource in resources]
        rows = [[first, *row] for first, row in zip(["NAMESPACE", *namespaces], rows, strict=True)]
    return rows


def summarize(resource: Mapping[str, Any]) -> Manifest:
    """Return what kubectl counts of an object of Kubernetes; empty for other kinds."""
    kind = resource["kind"]
    if kind == "Event":
        involved = resource["involvedObject"]
        return {"object": f"{involved['kind'].lower()}/{involved['name']}"}
    if kind in ("Secret", "ConfigMap"):
        data = {**resource.get("data", {}), **resource.get("stringData", {})}
        return {"data": len(data), "type": resource.get("type", "Opaque")}
    if kind != "Pod":
        return {}
    status, containers = resource.get("status", {}), resource["spec"]["containers"]
    of_containers = status.get("containerStatuses", [])
    states = [state for container in of_containers for state in container["state"].values()]
    reasons = [state["reason"] for state in states if "reason" in state]
    ending = "deletionTimestamp" in resource["metadata"]
    return {
        "ready": f"{sum(container['ready'] for container in of_containers)}/{len(containers)}",
        "status": "Terminating" if ending else [*reasons, status.get("phase", "Pending")][0],
        "restarts": sum(container["restartCount"] for container in of_containers),
    }


def measure_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the widths of the columns of a table."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def format_table(rows: Sequence[Sequence[str]], widths: Sequence[int] | None = None) -> list[str]:
    """Return the lines of a table, whose columns have these widths or those of its cells."""
    widths = widths or measure_columns(rows)
    lines = []
    for row in rows:
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        lines.append(GAP.join(cells).rstrip())
    return lines


def format_description(
    resource: Manifest, events: Sequence[Mapping[str, Any]], now: datetime.datetime
) -> str:
    """Return what `describe` shows: the resource, then its events."""
    meta = resource["metadata"]
    lines = [
        f"Name:         {meta['name']}",
        f"Namespace:    {meta['namespace']}",
        f"Labels:       {_format_map(meta.get('labels', {}))}",
        f"Annotations:  {_format_map(meta.get('annotations', {}))}",
        f"API Version:  {resource['apiVersion']}",
        f"Kind:         {resource['kind']}",
    ]
    for field in ("spec", "status"):
        if field in resource:
            text = dump_yaml(resource[field]).rstrip("\n")
            lines += [f"{field.capitalize()}:", *(f"  {line}" for line in text.splitlines())]
    if not events:
        return "\n".join([*lines, f"Events:       {NONE}"])
    rows = [["Type", "Reason", "Age", "From", "Message"]]
    for event in events:
        age = format_age(event["lastTimestamp"], now)
        if event.get("count", 1) > 1:
            age += f" (x{event['count']} over {format_age(event['firstTimestamp'], now)})"
        source = event.get("source", {}).get("component", "")
        rows.append([event["type"], event["reason"], age, source, event["message"]])
    rows.insert(1, ["-" * len(word) for word in rows[0]])
    return "\n".join([*lines, "Events:", *(f"  {line}" for line in format_table(rows))])


def _format_map(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(values.items())) or NONE
