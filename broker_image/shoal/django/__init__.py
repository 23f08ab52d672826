"""Tasks of Django as records of topics: `ShoalBackend` enqueues, `manage.py shoal_worker` runs.

    INSTALLED_APPS = [..., "shoal.django"]
    TASKS = {
        "default": {
            "BACKEND": "shoal.django.ShoalBackend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"bootstrap_servers": "kafka:9092"},
        }
    }

A queue is a topic, and all queues of a backend have one share group. docs/django.md is the guide.
"""

from shoal.django.backend import ShoalBackend

__all__ = ["ShoalBackend"]
