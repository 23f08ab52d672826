"""The steps of `shoal_spark.register` in an application, and their order."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import shoal_spark
from shoal_spark import allocation, metrics


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    monkeypatch.setattr(shoal_spark, "_applications", set())
    monkeypatch.setattr(allocation, "follow", lambda spark: made.append("executors"))
    monkeypatch.setattr(metrics, "publish", lambda spark: made.append("metrics"))
    return made


def session(calls: list[str], **more: object) -> SimpleNamespace:
    sources = SimpleNamespace(register=lambda source: calls.append(source.name()))
    return SimpleNamespace(dataSource=sources, **more)


def test_executors_are_asked_for_before_anything_else(calls: list[str]) -> None:
    """They take seconds to start, while the driver continues."""
    spark = session(calls, _sc=SimpleNamespace(applicationId="a"))
    shoal_spark.register(spark)
    assert calls[0] == "executors"
    assert {"metrics", "sharegroup", "kafka-topic"} <= set(calls)
    shoal_spark.register(spark)
    assert calls.count("executors") == calls.count("metrics") == 1
    assert calls.count("sharegroup") == 2, "another session of the application needs them too"


def test_a_session_of_spark_connect_has_no_executors_of_its_own(calls: list[str]) -> None:
    shoal_spark.register(session(calls))
    assert "executors" not in calls
    assert "sharegroup" in calls
