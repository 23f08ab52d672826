"""Listeners of the metadata image whose disk fails: nobody else waits for them, and they get the
change again."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from shoal.metadata.delta import MetadataDelta
from shoal.metadata.image import ImageScope, MetadataImage, PartitionImage, TopicImage
from shoal.server.metadata_cache import MetadataCache

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTITION = PartitionImage(replicas=(1,), isr=(1,), leader=1, leader_epoch=0, partition_epoch=0)
OLD, NEW = TopicImage("t", UUID(int=1), (PARTITION,)), TopicImage("t", UUID(int=2), (PARTITION,))


def image_of(*topics: TopicImage) -> MetadataImage:
    return MetadataImage(
        scope=ImageScope(1),
        topics={topic.name: topic for topic in topics},
        topics_by_id={topic.topic_id: topic for topic in topics},
    )


class Follower:
    """A listener that notes its deltas, on a disk that may be full."""

    def __init__(self, cache: MetadataCache) -> None:
        self.is_full = False
        self.deltas: list[MetadataDelta] = []
        cache.subscribe(self.follow)

    def follow(self, _image: MetadataImage, delta: MetadataDelta) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.deltas.append(delta)

    @property
    def names(self) -> list[tuple[Sequence[TopicImage], Sequence[TopicImage]]]:
        return [(delta.created, delta.deleted) for delta in self.deltas]


def test_a_listener_that_fails_hinders_no_other_and_gets_the_change_again() -> None:
    cache = MetadataCache(ImageScope(1))
    before, failing, later = (Follower(cache) for _ in range(3))
    failing.is_full = True
    created = MetadataDelta(created=(NEW,))
    reason = cache.publish(image_of(NEW), created)
    assert reason is not None
    assert "No space left" in reason
    assert cache.not_applied == reason
    assert before.deltas == later.deltas == [created]
    cache.retry()
    assert failing.deltas == []
    failing.is_full = False
    cache.retry()
    assert failing.deltas == [created]
    assert cache.not_applied is None
    # A later listener may depend on the one that failed, so it gets the topics again.
    assert later.deltas == [created, created]
    assert before.deltas == [created]
    cache.retry()
    assert failing.deltas == [created]


def test_changes_that_were_missed_come_as_they_are_now() -> None:
    cache = MetadataCache(ImageScope(1))
    failing = Follower(cache)
    failing.is_full = True
    cache.publish(image_of(OLD), MetadataDelta(created=(OLD,), brokers=(2,)))
    cache.publish(image_of(), MetadataDelta(deleted=(OLD,)))
    cache.publish(image_of(NEW), MetadataDelta(created=(NEW,), brokers=(1, 2)))
    wider = NEW._replace(partitions=(PARTITION, PARTITION))
    cache.publish(image_of(wider), MetadataDelta(changed=((NEW, wider),)))
    failing.is_full = False
    cache.retry()
    assert failing.deltas == [MetadataDelta(created=(wider,), deleted=(OLD,), brokers=(1, 2))]


def test_a_change_is_not_refused_for_what_an_earlier_one_lacks() -> None:
    cache = MetadataCache(ImageScope(1))
    failing = Follower(cache)
    failing.is_full = True
    cache.publish(image_of(OLD), MetadataDelta(created=(OLD,)))
    failing.is_full = False
    assert cache.publish(image_of(OLD), MetadataDelta(brokers=(2,))) is None
    assert cache.not_applied is not None
    cache.retry()
    assert cache.not_applied is None


def test_an_error_of_ours_is_raised_when_the_others_have_the_change() -> None:
    cache = MetadataCache(ImageScope(1))

    def fail(_image: MetadataImage, _delta: MetadataDelta) -> None:
        raise AssertionError("a bug")

    cache.subscribe(fail)
    later = Follower(cache)
    with pytest.raises(AssertionError, match="a bug"):
        cache.publish(image_of(NEW), MetadataDelta(created=(NEW,)))
    assert later.names == [((NEW,), ())]
