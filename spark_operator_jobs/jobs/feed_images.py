"""Fills a queue with image tasks: scikit-image's own pictures, cut and turned, some of them broken.

    python feed_images.py --bootstrap-servers localhost:9092 --topic images --count 20000

Makes the topic if it is not there, and the group's configs if `--group` is given: it starts at the
beginning of the topic, and its rejected records go to `--dead-letters`.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import io
import os
import sys
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

from PIL import Image
from shoal.client.client import Client
from shoal.client.configs import ConfigChange, Resource, ResourceType
from shoal.client.errors import ClientError, KafkaError, expect
from shoal.client.topics import NewTopic
from shoal.protocol.errors import ErrorCode

#: Different pictures; more tasks than that repeat them under other names.
PICTURES = 400
#: Records that are on their way at once.
WINDOW = 500


def originals() -> list[tuple[str, Image.Image]]:
    """The pictures in scikit-image's package, by name."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the pictures come with scikit-image: pip install scikit-image")
    folder = Path(spec.submodule_search_locations[0], "data")
    paths = sorted(p for p in folder.iterdir() if p.suffix in (".png", ".jpg"))
    found = []
    for path in paths:
        with Image.open(path) as image:
            found.append((path.stem, image.convert("RGB")))
    return found


def pictures(size: int, count: int) -> Iterator[tuple[str, bytes]]:
    """`count` different JPEGs of `size` pixels square: name and bytes."""
    for number, (name, image) in enumerate(islice(cycle(originals()), count)):
        # A window that wanders over the picture, and a quarter turn now and then.
        side = min(image.size) * (60 + number % 40) // 100
        left = (image.width - side) * (number * 7 % 11) // 10
        top = (image.height - side) * (number * 3 % 11) // 10
        window = image.crop((min(left, image.width - side), min(top, image.height - side),
                             min(left, image.width - side) + side,
                             min(top, image.height - side) + side))  # fmt: skip
        out = io.BytesIO()
        window.resize((size, size)).rotate(90 * (number % 4)).save(out, "JPEG", quality=85)
        yield name, out.getvalue()


def tasks(
    count: int, size: int, broken_every: int, name_of_all: str = "image"
) -> Iterator[tuple[str, bytes, str]]:
    """Key, value and the picture's name; each `broken_every`th is cut off in the middle."""
    made = list(pictures(size, min(count, PICTURES)))
    for number in range(count):
        name, data = made[number % len(made)]
        broken = broken_every and number % broken_every == broken_every - 1
        yield f"{name_of_all}-{number:06d}", data[: len(data) // 3] if broken else data, name


async def prepare(client: Client, given: argparse.Namespace) -> None:
    """The topic, and what the group needs to know."""
    names: dict[str, dict[str, str]] = {given.topic: {}, given.results_topic: {}}
    if given.dead_letters:
        names[given.dead_letters] = {"errors.deadletterqueue.group.enable": "true"}
    for name, configs in names.items():
        if not name:
            continue
        topic = NewTopic(name, given.partitions, given.replication_factor, configs=configs)
        made = (await client.admin.topics.create([topic]))[name]
        if isinstance(made, KafkaError) and made.code != ErrorCode.topic_already_exists:
            raise made
    if given.group:
        changes = [ConfigChange("share.auto.offset.reset", "earliest")]
        if given.dead_letters:
            changes += [
                ConfigChange("errors.deadletterqueue.topic.name", given.dead_letters),
                ConfigChange("errors.deadletterqueue.copy.record.enable", "true"),
            ]
        expect(await client.admin.configs.alter({
            Resource(ResourceType.GROUP, given.group): changes
        }))  # fmt: skip


async def feed(given: argparse.Namespace) -> int:
    async with Client(given.bootstrap_servers) as client:
        await prepare(client, given)
        sent = 0
        async with client.producer() as producer:
            waiting = []
            for number, (key, value, name) in enumerate(
                tasks(given.count, given.size, given.broken_every, given.name)
            ):
                waiting.append(await producer.send(
                    given.topic, value, key=key.encode(), headers=[("picture", name.encode())],
                    partition=number % given.partitions if given.spread else None,
                ))  # fmt: skip
                if len(waiting) == WINDOW:
                    await asyncio.gather(*waiting)
                    sent, waiting = sent + len(waiting), []
            await asyncio.gather(*waiting)
            return sent + len(waiting)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    found = os.environ.get
    parser.add_argument(
        "--bootstrap-servers", default=found("SHOAL_BOOTSTRAP_SERVERS", "localhost:9092")
    )
    parser.add_argument("--topic", default="images")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--replication-factor", type=int, default=-1)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--size", type=int, default=256, help="pixels of an image's side")
    parser.add_argument(
        "--broken-every", type=int, default=100, help="each so many is broken; 0 for none"
    )
    parser.add_argument("--name", default="image", help="what the tasks' keys begin with")
    parser.add_argument("--group", default="", help="a share group to configure")
    parser.add_argument("--dead-letters", default="", help="the group's dead-letter topic")
    parser.add_argument("--results-topic", default="", help="a topic to make for results")
    parser.add_argument(
        "--spread", action="store_true", help="over the partitions in turn, not by key"
    )
    given = parser.parse_args()
    try:
        print(f"{asyncio.run(feed(given))} image tasks are in topic {given.topic}.")
    except (ClientError, ValueError) as error:
        sys.exit(f"feed_images: {error}")


if __name__ == "__main__":
    main()
