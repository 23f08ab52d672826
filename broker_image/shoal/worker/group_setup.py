"""What a worker needs of its share group, and the settings that a new group gets.

A new group starts at the earliest record: jobs that were enqueued before the first worker ran are
work like any other. A group that somebody has configured keeps its settings.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from shoal.client.errors import ClientError, KafkaError, Unreachable
from shoal.client.net.metadata import NO_SUCH_TOPIC
from shoal.client.queues import queue_settings
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.client.admin.configs import ConfigEntry, ConfigResource
    from shoal.client.client import Client
    from shoal.worker.handlers import Handler

log = logging.getLogger("shoal.worker")

_RESET = queue_settings.RESET
_RENEWS = queue_settings.RENEWS
_LIMIT = queue_settings.DELIVERY_LIMIT
_BACKOFF_MAX = queue_settings.BACKOFF_MAX
_DEAD_LETTERS = queue_settings.DEAD_LETTER_TOPIC
#: The default of `share.redelivery.backoff.max.ms`.
_BACKOFF_MAX_MS = 300_000


class GroupFacts(NamedTuple):
    """The settings of a group that decide how a worker treats its records."""

    #: Whether members may renew locks (`share.renew.acknowledge.enable`).
    renews: bool = True
    #: Whether this member may hold several records of a key, which must run in log order.
    keeps_order: bool = False
    #: Whether a dead letter stops its key (`share.ordering.key.dead.letter=hold`).
    holds_keys: bool = False
    #: Whether the broker waits with later records of a key for earlier ones.
    is_ordered: bool = False
    #: The longest back-off (`share.redelivery.backoff.max.ms`).
    delay_max_s: float = _BACKOFF_MAX_MS / 1000
    #: The longest delay that the headers of a record may ask for; None if it is not known.
    header_delay_max_ms: int | None = None
    #: The header with a record's priority, empty without priorities; None if it is not known.
    priority_header: str | None = None


async def prepare_group(client: Client, group: str, handlers: Sequence[Handler]) -> GroupFacts:
    """Configure a new group, warn of settings that lose work, and return the facts. Raises
    `Unreachable`."""
    resource = queue_settings.make_group(group)
    if await _is_new(client, group):
        await _configure(client, resource, handlers)
    try:
        configs = await queue_settings.read_configs(client.admin, resource)
    except Unreachable:
        raise
    except ClientError as error:
        log.warning("cannot read the configs of group %s: %s. Keys keep their order.", group, error)
        return GroupFacts(keeps_order=True, is_ordered=True)
    values = {name: entry.value or "" for name, entry in configs.items()}
    _warn_of_settings(group, values, handlers)
    await _warn_of_missing_results(client, handlers)
    is_ordered = values.get("share.ordering") == "key"
    return GroupFacts(
        renews=values.get(_RENEWS, "true") == "true",
        keeps_order=is_ordered and values.get("share.ordering.key.batch", "1") != "1",
        holds_keys=values.get("share.ordering.key.dead.letter") == "hold",
        is_ordered=is_ordered,
        delay_max_s=int(values.get(_BACKOFF_MAX, _BACKOFF_MAX_MS)) / 1000,
        header_delay_max_ms=int(values.get(queue_settings.DELAY_MAX_MS) or 0),
        priority_header=values.get(queue_settings.PRIORITY_HEADER, ""),
    )


async def _is_new(client: Client, group: str) -> bool:
    """Whether nobody has used this group: it has no positions."""
    try:
        positions = (await client.admin.share_groups.offsets([group]))[group]
    except Unreachable:
        raise
    except ClientError:
        return False
    if isinstance(positions, KafkaError):
        return positions.code is ErrorCode.group_id_not_found
    return not positions


async def _configure(client: Client, resource: ConfigResource, handlers: Sequence[Handler]) -> None:
    """Give a new group what its handlers need, beside what somebody has set already."""
    try:
        configs = await queue_settings.read_configs(client.admin, resource)
        desired = {_RESET: queue_settings.FIRST_POSITION}
        if (limit := 1 + max(h.retries for h in handlers)) > _read_int(configs, _LIMIT, limit):
            desired[_LIMIT] = str(limit)
        longest_ms = int(1000 * max(h.backoff.longest_s for h in handlers))
        if longest_ms > _read_int(configs, _BACKOFF_MAX, longest_ms):
            desired[_BACKOFF_MAX] = str(longest_ms)
        for name, value in queue_settings.find_unset(configs, desired).items():
            await queue_settings.set_configs(client.admin, resource, {name: value})
            log.info("new group %s: %s=%s", resource.name, name, value)
    except ClientError as error:
        log.warning(
            "group %s is new, and this worker may not configure it: %s. It starts at the end of"
            " its topics, so records from before are left behind. To get them, run"
            " `shoal configs set group %s %s=earliest` before the first worker starts.",
            resource.name,
            error,
            resource.name,
            _RESET,
        )


def _warn_of_settings(group: str, values: Mapping[str, str], handlers: Sequence[Handler]) -> None:
    """Say which settings of the group end records earlier than the handlers ask for."""
    if values.get(_RENEWS, "true") != "true":
        log.warning(
            "group %s does not allow its members to renew locks (%s): a job must end within %d ms.",
            group,
            _RENEWS,
            int(values.get("share.record.lock.duration.ms") or 30_000),
        )
    if not values.get(_DEAD_LETTERS):
        log.warning(
            "group %s has no dead-letter topic: a record that is rejected, or fails too often, is"
            " dropped. Set %s.",
            group,
            _DEAD_LETTERS,
        )
    for handler in handlers:
        limit = int(values.get(_LIMIT) or handler.retries + 1)
        if limit <= handler.retries:
            log.warning(
                "handler %s has retries=%d, but group %s ends records after %d deliveries (%s).",
                handler.name,
                handler.retries,
                group,
                limit,
                _LIMIT,
            )
        longest_ms = int(values.get(_BACKOFF_MAX) or _BACKOFF_MAX_MS)
        if handler.backoff.longest_s * 1000 > longest_ms:
            log.warning(
                "handler %s has a back-off of up to %g s, but group %s allows %g s (%s).",
                handler.name,
                handler.backoff.longest_s,
                group,
                longest_ms / 1000,
                _BACKOFF_MAX,
            )


async def _warn_of_missing_results(client: Client, handlers: Sequence[Handler]) -> None:
    """Say which jobs will fail after their work is done, because nobody has created the topic of
    their results."""
    names = {handler.results: handler.name for handler in handlers if handler.results}
    for topic, metadata in (await client.cluster.get_topics(names)).items():
        if isinstance(metadata, KafkaError) and metadata.code in NO_SUCH_TOPIC:
            log.warning(
                "handler %s writes results to topic %s, which does not exist, so its jobs fail:"
                " create it with `shoal topics create %s`.",
                names[topic],
                topic,
                topic,
            )


def _read_int(configs: Mapping[str, ConfigEntry], name: str, default: int) -> int:
    return int((configs[name].value if name in configs else None) or default)
