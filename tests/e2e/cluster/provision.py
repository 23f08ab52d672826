"""All that a cluster, its tests and the demo need: programs and images, built side by side.

Programs are compiled one after the other in this thread. Images are built beside them in another,
which waits for downloads, Debian's packages and the disk more than it computes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from . import images, spark_operator
from .layout import CACHE
from .programs import is_built, program

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .backend import Cluster

#: Minutes that a program takes to compile on two idle cores, after those before it.
#: kubectl is part of hyper.
PROGRAM_MINUTES = {
    "hyper": 5.0,
    "kubectl": 5.0,
    "coredns": 0.2,
    "helm": 1.5,
    spark_operator.NAMESPACE: 1.3,
}
#: Minutes that an image takes on two idle cores, with its downloads.
IMAGE_MINUTES = {"broker": 0.6, "operator": 0.5, "spark": 3.0, spark_operator.NAMESPACE: 0.7}
#: The part of an image's time that it takes from the compiler beside it. The rest is waiting.
BESIDE = 0.5


class Plan(NamedTuple):
    """What a cache lacks."""

    programs: tuple[str, ...]
    images: tuple[str, ...]

    @property
    def minutes(self) -> float:
        """The time that it takes on two cores."""
        compiling = sum(PROGRAM_MINUTES.get(name, 0.0) for name in self.programs)
        building = sum(IMAGE_MINUTES[name] for name in self.images)
        return max(compiling, building) + BESIDE * min(compiling, building)

    def __str__(self) -> str:
        steps = []
        if self.programs:
            steps.append(f"compile {', '.join(self.programs)} from Go modules")
        if self.images:
            steps.append(f"build the images {', '.join(self.images)}")
        if not steps:
            return f"Programs and images are in {CACHE} already."
        return (
            f"First, {' and '.join(steps)}: about {self.minutes:.0f} minutes on two cores, "
            f"once. {CACHE} keeps them for every clone, and may be deleted."
        )


def plan(cluster: Cluster, names: Sequence[str]) -> Plan:
    """Return what `provide` would build now."""
    wanted = [*cluster.programs]
    if spark_operator.NAMESPACE in names:
        wanted.append(spark_operator.NAMESPACE)
    programs = tuple(name for name in wanted if not is_built(name))
    return Plan(programs, tuple(name for name in names if not is_there(name)))


def is_there(name: str) -> bool:
    """Return whether the image's archive is in the cache."""
    if name != spark_operator.NAMESPACE:
        return images.find_path(name).exists()
    return is_built(name) and images.find_spark_operator_path().exists()


def build(name: str) -> tuple[str, Path]:
    """Return the name of an image, and its archive, built now if anything changed."""
    if name == spark_operator.NAMESPACE:
        return images.SPARK_OPERATOR_IMAGE, images.spark_operator_archive()
    return images.tag(name), images.archive(name)


def provide(cluster: Cluster, names: Sequence[str]) -> None:
    """Build and install what a cluster needs, and these images; start nothing."""

    def build_images() -> None:
        cluster.install()
        for name in names:
            build(name)
            cluster.laps(f"the image {name} is built")

    with ThreadPoolExecutor(max_workers=1) as pool:
        built = pool.submit(build_images)
        cluster.provide()
        if spark_operator.NAMESPACE in names:
            # Its image comes last: the program is there by then.
            program(spark_operator.NAMESPACE)
            cluster.laps(f"{spark_operator.NAMESPACE} is built")
        built.result()
