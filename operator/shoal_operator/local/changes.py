"""`apply` and `delete` on the objects of a state folder, with kubectl's lines and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator.kube.kube import PLURALS, KubeError
from shoal_operator.local import manifests, one_machine, validation
from shoal_operator.local.api import get_key
from shoal_operator.local.definitions import find_definition, load_definitions
from shoal_operator.model import names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.local.api import LocalApi
    from shoal_operator.local.manifests import Overrides
    from shoal_operator.model.names import Manifest


class CommandOutput(NamedTuple):
    """What a command prints on standard output, and on standard error; with errors it exits with
    1. Each error is about one manifest in `refused`."""

    lines: list[str]
    errors: list[str]
    refused: Sequence[Manifest] = ()

    @property
    def is_refused(self) -> bool:
        """Whether nothing could be applied."""
        return bool(self.errors) and not self.lines


def apply_manifests(
    api: LocalApi,
    desired: Sequence[Manifest],
    overrides: Overrides = manifests.Overrides(),
    *,
    sources: Sequence[str] = (),
) -> CommandOutput:
    """Create or change resources. One that is refused does not keep the others from it. `sources`
    are the files of the manifests, for errors."""
    lines, errors, refused = [], [], []
    for manifest, source in zip(desired, sources or [""] * len(desired), strict=True):
        changed, notes = overrides.change(manifest)
        if changed is None:
            meta = manifest["metadata"]
            name = f"{manifest['kind'].lower()}.{names.GROUP}/{meta['name']}"
            if (old := api.find(manifest["kind"], meta["namespace"], meta["name"])) is not None:
                api.delete_now(old)
            lines.append("\n  ".join([f"{name} skipped", *notes]))
            continue
        try:
            lines += _apply(api, changed, notes, runs_images=overrides.containers)
        except KubeError as error:
            is_new = get_key(manifest) not in api.objects
            place = f'error when {"creating" if is_new else "patching"} "{source}": '
            errors.append(_format_error(error, manifest, place if source else ""))
            refused.append(manifest)
    return CommandOutput(lines, errors, refused)


def _format_error(error: KubeError, manifest: Manifest, place: str) -> str:
    """Return the line of kubectl. A violation of the schema already names the resource. Of an
    unknown field in a patch, kubectl prints the whole object before it, which this leaves out."""
    if error.status == 400:
        return f"Error from server (BadRequest): {place}{error}"
    if error.status == 404:
        name = manifest["metadata"]["name"]
        return f'error: resource mapping not found for name: "{name}": {error}'
    return str(error)


def _apply(
    api: LocalApi, manifest: Manifest, notes: Sequence[str], *, runs_images: bool
) -> list[str]:
    """Create or change a resource; return the lines about it, with notes if it has changed."""
    kind, meta = manifest["kind"], manifest["metadata"]
    key = (kind, meta["namespace"], meta["name"])
    old = api.objects.get(key)
    listed: list[str] = []
    definition = load_definitions().get(kind)
    if definition is None:
        # A Secret or ConfigMap of the user.
        if violations := validation.find_common_violations(manifest):
            raise KubeError(422, validation.format_refusal(kind, meta["name"], violations))
        made: Manifest = {**manifest, "metadata": _merge_metadata(old, meta)}
        label = kind.lower()
    else:
        before = one_machine.put_back(old, manifest) if old else None
        prepared = validation.prepare(definition, manifest, before)
        made, listed = one_machine.adapt(prepared, runs_images=runs_images)
        made["metadata"] = _merge_metadata(old, made["metadata"])
        label = definition.full_singular
    version = old["metadata"]["resourceVersion"] if old else ""
    after = api.write(key, made)["metadata"]["resourceVersion"]
    verb = "unchanged" if version == after else "configured" if old else "created"
    lines = [f"{label}/{meta['name']} {verb}"]
    if verb != "unchanged":
        lines += [f"  {note}" for note in notes]
        lines += [f"  not on one machine: {', '.join(listed)}"] if listed else []
    return lines


def _merge_metadata(old: Manifest | None, meta: Mapping[str, Any]) -> Manifest:
    """Return new metadata: finalizers and times of the old version stay, its labels go."""
    kept = {
        name: (old or {}).get("metadata", {}).get(name)
        for name in ("uid", "creationTimestamp", "generation", "finalizers", "deletionTimestamp")
    }
    own = {name: value for name, value in meta.items() if name != "deletionTimestamp"}
    return {**{name: value for name, value in kept.items() if value is not None}, **own}


async def delete(
    api: LocalApi, kind: str, namespace: str, name: str, *, ignores_missing: bool
) -> CommandOutput:
    """Delete an object of a kind that `find_definition` knows."""
    definition = find_definition(kind)
    assert definition is not None, f"{kind} has no definition"
    have = api.find(definition.kind, namespace, name)
    if have is None:
        text = f'Error from server (NotFound): {definition.resource} "{name}" not found'
        return CommandOutput([], [] if ignores_missing else [text])
    await api.delete(have)
    return CommandOutput(
        [f'{definition.full_singular} "{name}" deleted from {namespace} namespace'], []
    )


def delete_missing(api: LocalApi, applied: Any, desired: Sequence[Manifest]) -> list[Manifest]:
    """Return the resources that an earlier `up` took from files that no longer have them."""
    have = {(m["kind"], m["metadata"]["namespace"], m["metadata"]["name"]) for m in desired}
    keys = [tuple(row) for row in applied or [] if tuple(row) not in have]
    return [
        resource for key in keys if key[0] in PLURALS and (resource := api.find(*key)) is not None
    ]
