"""Encoded responses of an image: their bound in bytes."""

from __future__ import annotations

from shoal.metadata.answers import EncodedResponseCache


def test_the_oldest_answers_are_dropped_first() -> None:
    answers = EncodedResponseCache(bytes_max=10_000)
    for number in range(20):
        answers.put(number, f"answer {number}", 1_500)
    assert [number for number in range(20) if answers.get(number)] == [15, 16, 17, 18, 19]
    assert answers.get(19) == "answer 19"


def test_an_answer_larger_than_the_cache_drops_no_other() -> None:
    answers = EncodedResponseCache(bytes_max=10_000)
    answers.put("small", "a", 100)
    answers.put("large", "b", 10_000)
    assert answers.get("small") == "a"
    assert answers.get("large") is None


def test_the_same_answer_counts_once() -> None:
    answers = EncodedResponseCache(bytes_max=10_000)
    for _ in range(50):
        answers.put("one", "a", 4_000)
    answers.put("two", "b", 4_000)
    assert len(answers) == 2
