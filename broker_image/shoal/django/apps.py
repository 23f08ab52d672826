"""The application with the command `shoal_worker`."""

from __future__ import annotations

from django.apps import AppConfig


class ShoalConfig(AppConfig):  # type: ignore[misc]
    """`shoal.django` in INSTALLED_APPS. Its label would be `django` by default."""

    name = "shoal.django"
    label = "shoal"
    verbose_name = "Shoal"
