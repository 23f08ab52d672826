"""Which resources the words and the label selectors of `get`, `describe` and `delete` name, and
errors as kubectl prints them."""

from __future__ import annotations

import re
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
#: The forms of a requirement in a label selector.
_COMMA = re.compile(r",(?![^()]*\))")
_KEY = r"(?P<key>[\w./-]+)"
_EXISTS = re.compile(rf"(?P<no>!?)\s*{_KEY}")
_EQUALS = re.compile(rf"{_KEY}\s*(?P<no>!?)={{1,2}}\s*(?P<values>[\w.-]*)")
_IN = re.compile(rf"{_KEY}\s+(?P<no>not)?in\s+\((?P<values>[\w.,\s-]*)\)")


class KubectlRefusal(Exception):
    """What kubectl would refuse; the message is what it prints."""


class ResourceTarget(NamedTuple):
    """A resource, or all of a kind."""

    definition: Definition
    name: str | None = None


class LabelRequirement(NamedTuple):
    """A condition on a label: it has one of the values, or any if that is None. `negated` turns it
    round, so that an object without the label matches."""

    key: str
    values: frozenset[str] | None
    negated: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet the condition."""
        value = labels.get(self.key)
        holds = value is not None and (self.values is None or value in self.values)
        return holds != self.negated


class Scope(NamedTuple):
    """Where resources are looked for: a namespace, None for all, and what their labels must meet.

    `is_chosen` if labels or `--all` choose the resources.
    """

    namespace: str | None
    labels: tuple[LabelRequirement, ...] = ()
    is_chosen: bool = False

    def has(self, resource: Mapping[str, Any]) -> bool:
        """Return whether a resource is in the namespace and has the labels."""
        meta = resource["metadata"]
        labels = meta.get("labels") or {}
        return self.namespace in (None, meta["namespace"]) and all(
            requirement.matches(labels) for requirement in self.labels
        )

    @property
    def place(self) -> str:
        """What follows "No resources found"."""
        return "" if self.namespace is None else f" in {self.namespace} namespace."


def make_scope(
    words: Sequence[str],
    namespace: str,
    *,
    all_namespaces: bool = False,
    selector: str = "",
    is_all: bool = False,
) -> Scope:
    """Return where the resources are that the words name. Raises `KubectlRefusal` for names beside
    a selector, `--all` or all namespaces."""
    if is_all and selector:
        raise KubectlRefusal("error: cannot set --all and --selector at the same time")
    if is_all or selector:
        if "/" in words[0]:
            raise KubectlRefusal(
                "error: selectors and the all flag cannot be used when passing resource/name "
                "arguments"
            )
        if len(words) > 1:
            raise KubectlRefusal("error: name cannot be provided when a selector is specified")
    elif all_namespaces and (len(words) > 1 or "/" in words[0]):
        raise KubectlRefusal("error: a resource cannot be retrieved by name across all namespaces")
    try:
        labels = parse_selector(selector)
    except ValueError as error:
        raise KubectlRefusal(f"error: {error}") from None
    return Scope(None if all_namespaces else namespace, labels, is_all or bool(selector))


def parse_selector(text: str) -> tuple[LabelRequirement, ...]:
    """Return the requirements of a selector such as `app=jobs,tier in (a, b),!old`.

    Raises `ValueError` for text that is none.
    """
    return tuple(_parse_requirement(part.strip()) for part in _COMMA.split(text) if text.strip())


def _parse_requirement(text: str) -> LabelRequirement:
    for pattern in (_EXISTS, _EQUALS, _IN):
        if match := pattern.fullmatch(text):
            fields = match.groupdict()
            values = fields.get("values")
            allowed = None if values is None else frozenset(v.strip() for v in values.split(","))
            return LabelRequirement(fields["key"], allowed, bool(fields["no"]))
    raise ValueError(f"unable to parse requirement: {text!r}")


def run_as_kubectl(call: Callable[[], None]) -> None:
    """Run `call`; its `KubectlRefusal` is printed as it is, with the exit code 1."""

    def run() -> None:
        try:
            call()
        except KubectlRefusal as error:
            sys.stdout.flush()
            say(str(error), file=sys.stderr)
            raise typer.Exit(1) from None

    run_guarded(run)


def parse_targets(words: Sequence[str]) -> list[ResourceTarget]:
    """Return what the words name: `KIND,KIND`, `KIND NAME NAME`, or `KIND/NAME KIND/NAME`. Raises
    `KubectlRefusal`."""
    kinds = words[0].split(",")
    if len(kinds) > 1 and len(words) > 1:
        words = [f"{kind}/{name}" for kind in kinds for name in words[1:]]
    pairs = ["/" in word for word in words]
    if all(pairs):
        return [_parse_pair(word) for word in words]
    if any(pairs):
        raise KubectlRefusal(
            "error: there is no need to specify a resource type as a separate argument when passing"
            " arguments in resource/name form (e.g. 'shoal get resource/<resource_name>' instead of"
            " 'shoal get resource resource/<resource_name>'"
        )
    definitions = _list_definitions(words[0])
    if len(words) > 1 and len(definitions) > 1:
        raise KubectlRefusal("error: you must specify only one resource")
    names: list[str | None] = [*words[1:]] or [None]
    return [ResourceTarget(definition, name) for definition in definitions for name in names]


def _parse_pair(word: str) -> ResourceTarget:
    kind, _, name = word.partition("/")
    if "/" in name:
        raise KubectlRefusal(
            "error: arguments in resource/name form may not have more than one slash"
        )
    if not kind or not name or "," in kind:
        raise KubectlRefusal(
            "error: arguments in resource/name form must have a single resource and name"
        )
    definitions = _list_definitions(kind)
    if len(definitions) > 1:
        raise KubectlRefusal("error: you must specify only one resource")
    return ResourceTarget(definitions[0], name)


def _list_definitions(word: str) -> list[Definition]:
    definitions: list[Definition] = []
    for part in word.split(","):
        if part in CATEGORIES:
            definitions += load_definitions().values()
            continue
        definition = find_definition(part)
        if definition is None:
            raise KubectlRefusal(f'error: the server doesn\'t have a resource type "{part}"')
        definitions.append(definition)
    return list({definition.kind: definition for definition in definitions}.values())


def select(
    objects: Mapping[Key, Manifest], targets: Iterable[ResourceTarget], scope: Scope
) -> tuple[dict[str, list[Manifest]], list[str]]:
    """Return the resources of a scope by their kinds, and what kubectl says about those that do not
    exist."""
    selected: dict[str, list[Manifest]] = {}
    errors = []
    for definition, name in targets:
        of_kind = selected.setdefault(definition.kind, [])
        if name is None:
            keys = sorted(key for key in objects if key[0] == definition.kind)
            of_kind += [objects[key] for key in keys if scope.has(objects[key])]
        elif (resource := objects.get((definition.kind, scope.namespace or "", name))) is not None:
            of_kind.append(resource)
        else:
            text = f'{definition.resource} "{name}" not found'
            errors.append(f"Error from server (NotFound): {text}")
    return selected, errors


def list_matching(
    objects: Mapping[Key, Manifest], target: ResourceTarget, scope: Scope
) -> list[Manifest]:
    """Return the resources whose names begin with the target's, which kubectl describes if there is
    none of that name."""
    selected, _ = select(objects, [ResourceTarget(target.definition)], scope)
    prefix = target.name or ""
    return [
        resource
        for resource in selected[target.definition.kind]
        if resource["metadata"]["name"].startswith(prefix)
    ]


def is_wanted(resource: Mapping[str, Any], targets: Iterable[ResourceTarget], scope: Scope) -> bool:
    """Return whether a resource is one of those that the words name."""
    return scope.has(resource) and any(
        target.definition.kind == resource["kind"]
        and target.name in (None, resource["metadata"]["name"])
        for target in targets
    )
