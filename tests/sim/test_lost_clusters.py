"""Clusters that are lost at any step and restored from their bucket, one for each seed.

`LOST_SEEDS=from-to` chooses the seeds; `make nightly` runs many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from shoal.server.tiered import rebuild, restore, restored_state
from shoal.server.tiered.manifests import Manifests
from sim.lost_clusters import simulate
from sim.seeds import chosen, chunked, find, keep_by_day, one_seed, run

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = chosen("LOST_SEEDS", recorded=1, drawn=1)
#: Seeds to try before a mutant counts as not found.
TRIES = 40


@chunked(SEEDS, 100)
def test_seeds(seeds: range) -> None:
    run(simulate, seeds)


def test_one_seed() -> None:
    """The seed of the environment, or a drawn one."""
    simulate(one_seed())


# Restores, backups and copies with one rule broken.


def keeps_positions_past_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(restored_state, "_restore_position", lambda fields, end: dict(fields))


def keeps_share_groups_past_the_log(patch: pytest.MonkeyPatch) -> None:
    real = restored_state._make_share_snapshot
    patch.setattr(restored_state, "_make_share_snapshot", lambda state, end: real(state, 1 << 40))


def forgets_the_positions(patch: pytest.MonkeyPatch) -> None:
    real = restore._read_states

    async def state(store: Any, ring: Any, cluster_id: str, topic: Any, target: Any) -> Any:
        if topic.name == "__consumer_offsets":
            return {}
        return await real(store, ring, cluster_id, topic, target)

    patch.setattr(restore, "_read_states", state)


def leaves_transactions_open(patch: pytest.MonkeyPatch) -> None:
    real = restore._find_source

    async def source(*words: Any) -> Any:
        return (await real(*words))._replace(open=())

    patch.setattr(restore, "_find_source", source)


def leaves_the_last_segment_out(patch: pytest.MonkeyPatch) -> None:
    real = rebuild.split_present

    async def present(*words: Any) -> Any:
        whole, missing = await real(*words)
        return whole[:-1], missing

    patch.setattr(rebuild, "split_present", present)


def writes_a_manifest_once(patch: pytest.MonkeyPatch) -> None:
    real = Manifests.write

    async def write(self: Any, partition: Any, prefix: str, remote: Any, added: Any = None) -> None:
        if added is None and self._get_claim(partition.key).written is None:
            await real(self, partition, prefix, remote)

    patch.setattr(Manifests, "write", write)


def takes_an_incarnation_of_each_node(patch: pytest.MonkeyPatch) -> None:
    async def take_over(*words: Any) -> str:
        return str(words[-1]())

    patch.setattr(restore, "_take_over", take_over)


#: By mutant, a seed that finds it.
MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    keeps_positions_past_the_log: 2,
    keeps_share_groups_past_the_log: 4,
    forgets_the_positions: 1,
    leaves_transactions_open: 8,
    leaves_the_last_segment_out: 4,
    writes_a_manifest_once: 2,
    takes_an_incarnation_of_each_node: 1,
}


@pytest.mark.parametrize(
    "mutant",
    keep_by_day(MUTANTS, {"leaves_the_last_segment_out"}),
    ids=lambda mutant: mutant.__name__,
)
def test_a_mutant_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    first = MUTANTS[mutant]
    seeds = range(first, first + TRIES)
    find(mutant.__name__, seeds, simulate, AssertionError, lambda _: True)
