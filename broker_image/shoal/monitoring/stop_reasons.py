"""Why delivery to a share group stops or its dead letters are not written, and the remedy.

The reasons are those of the brokers' metric `shoal_share_group_held`.
"""

from __future__ import annotations

#: By reason: what happened, and the remedy.
_SENTENCES = {
    "paused": "Delivery is paused. Resume it with `shoal share resume {group}`.",
    "flood": "Delivery has stopped: the group wrote more dead letters in a minute than "
    "shoal.errors.deadletterqueue.flood.per.minute allows. It resumes when the rate is lower.",
    "held-keys": "Delivery has stopped: the dead-lettered records that hold their keys have "
    "reached share.ordering.key.dead.letter.max.held. Redrive or skip some; see below.",
    "window-full": "Delivery has partly stopped: the records in flight have reached "
    "share.partition.max.record.locks. It resumes when records are settled, locks or delays end, "
    "or dead letters are written.",
    "look-ahead": "Delivery has partly stopped: the records that wait for their key, their delay "
    "or a limit of their tenant have reached a limit (share.ordering.key.lookahead, "
    "share.delay.max.records, share.fairness.lookahead.records).",
    "topic-name": "Dead letters cannot be written: the brokers do not allow the dead-letter "
    "topic's name. It must start with errors.deadletterqueue.topic.name.prefix.",
    "topic-missing": "Dead letters cannot be written: the dead-letter topic does not exist. Create "
    "it with errors.deadletterqueue.group.enable=true.",
    "topic-forbidden": "Dead letters cannot be written: set "
    "errors.deadletterqueue.group.enable=true on the dead-letter topic.",
}
_OTHER = (
    "Dead letters cannot be written ({why}). The broker's log has the error. The broker retries."
)


def format_sentence(why: str, group: str) -> str:
    """Return what the reason `why` means for a group, and the remedy."""
    return _SENTENCES.get(why, _OTHER).format(group=group, why=why)
