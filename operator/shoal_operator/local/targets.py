"""Which resources the words of `get`, `describe` and `delete` name, and errors as kubectl prints
them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from shoal.cli.session import run_guarded
from shoal.cli.terminal import say

from shoal_operator.local.definitions import Definition, find_definition, load_definitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shoal_operator.local.api import Key
    from shoal_operator.model.names import Manifest

#: Words for all custom resources: the category of the definitions, and kubectl's.
CATEGORIES = ("all", "shoal")


class KubectlError(Exception):
    """What kubectl would refuse; the message is what it prints."""


class Target(NamedTuple):
    """A resource, or all of a kind."""

    definition: Definition
    name: str | None = None


def run_as_kubectl(call: Callable[[], None]) -> None:
    """Run `call`; its `KubectlError` is printed as it is, with the exit code 1."""

    def run() -> None:
        try:
            call()
        except KubectlError as error:
            sys.stdout.flush()
            say(str(error), file=sys.stderr)
            raise typer.Exit(1) from None

    run_guarded(run)


def parse_targets(words: Sequence[str]) -> list[Target]:
    """Return what the words name: `KIND,KIND`, `KIND NAME NAME`, or `KIND/NAME KIND/NAME`. Raises
    `KubectlError`."""
    kinds = words[0].split(",")
    if len(kinds) > 1 and len(words) > 1:
        words = [f"{kind}/{name}" for kind in kinds for name in words[1:]]
    pairs = ["/" in word for word in words]
    if all(pairs):
        return [_parse_pair(word) for word in words]
    if any(pairs):
        raise KubectlError(
            "error: there is no need to specify a resource type as a separate argument when passing"
            " arguments in resource/name form (e.g. 'shoal get resource/<resource_name>' instead of"
            " 'shoal get resource resource/<resource_name>'"
        )
    definitions = _list_definitions(words[0])
    if len(words) > 1 and len(definitions) > 1:
        raise KubectlError("error: you must specify only one resource")
    names: list[str | None] = [*words[1:]] or [None]
    return [Target(one, name) for one in definitions for name in names]


def _parse_pair(word: str) -> Target:
    kind, _, name = word.partition("/")
    if "/" in name:
        raise KubectlError(
            "error: arguments in resource/name form may not have more than one slash"
        )
    if not kind or not name or "," in kind:
        raise KubectlError(
            "error: arguments in resource/name form must have a single resource and name"
        )
    definitions = _list_definitions(kind)
    if len(definitions) > 1:
        raise KubectlError("error: you must specify only one resource")
    return Target(definitions[0], name)


def _list_definitions(word: str) -> list[Definition]:
    found: list[Definition] = []
    for part in word.split(","):
        if part in CATEGORIES:
            found += load_definitions().values()
            continue
        definition = find_definition(part)
        if definition is None:
            raise KubectlError(f'error: the server doesn\'t have a resource type "{part}"')
        found.append(definition)
    return list({one.kind: one for one in found}.values())


def select(
    objects: Mapping[Key, Manifest], targets: Iterable[Target], namespace: str
) -> tuple[dict[str, list[Manifest]], list[str]]:
    """Return the resources of a namespace by their kinds, and what kubectl says about those that do
    not exist."""
    found: dict[str, list[Manifest]] = {}
    errors = []
    for definition, name in targets:
        of_kind = found.setdefault(definition.kind, [])
        if name is None:
            keys = sorted(key for key in objects if key[:2] == (definition.kind, namespace))
            of_kind += [objects[key] for key in keys]
        elif (one := objects.get((definition.kind, namespace, name))) is not None:
            of_kind.append(one)
        else:
            text = f'{definition.resource} "{name}" not found'
            errors.append(f"Error from server (NotFound): {text}")
    return found, errors


def list_matching(
    objects: Mapping[Key, Manifest], target: Target, namespace: str
) -> list[Manifest]:
    """Return the resources whose names begin with the target's, which kubectl describes if there is
    none of that name."""
    found, _ = select(objects, [Target(target.definition)], namespace)
    prefix = target.name or ""
    return [
        one for one in found[target.definition.kind] if one["metadata"]["name"].startswith(prefix)
    ]


def is_wanted(resource: Mapping[str, Any], targets: Iterable[Target], namespace: str) -> bool:
    """Return whether a resource is one of those that the words name."""
    meta = resource["metadata"]
    return meta.get("namespace") == namespace and any(
        target.definition.kind == resource["kind"] and target.name in (None, meta["name"])
        for target in targets
    )
