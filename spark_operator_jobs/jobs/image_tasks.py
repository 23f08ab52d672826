"""Image tasks: each record is an image; results are a thumbnail and a perceptual hash.

    spark-submit image_tasks.py --topics images --group thumbnails --output /data/thumbnails

Results go to Parquet, one folder per batch, so that a repeated batch overwrites its own results.
They also go to a topic as JSON without the thumbnail. An unreadable image is rejected and goes to
the group's dead-letter topic; the batch continues. `feed_images.py` fills the queue.
"""

from __future__ import annotations

import io
import json
import time
from typing import TYPE_CHECKING, Any

import shoal_spark
from pyspark.sql import DataFrame, SparkSession
from shoal_spark import arguments, outcomes, topics

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

SCHEMA = "name string, format string, width int, height int, hash string, thumbnail binary"
THUMBNAIL = (128, 128)
#: Maximum size of an image. Larger ones could exhaust the executor's memory.
PIXELS_MAX = 50_000_000


def make_thumbnail(value: bytes) -> dict[str, Any]:
    """Return the result for an image. Raises Pillow's errors if it is not an image."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = PIXELS_MAX
    image: Image.Image = Image.open(io.BytesIO(value))
    kind, (width, height) = image.format, image.size
    image = image.convert("RGB")
    small = image.copy()
    small.thumbnail(THUMBNAIL)
    out = io.BytesIO()
    small.save(out, "JPEG", quality=80)
    return {
        "format": kind,
        "width": width,
        "height": height,
        "hash": compute_perceptual_hash(image),
        "thumbnail": out.getvalue(),
    }


def compute_perceptual_hash(image: Any) -> str:
    """Return a difference hash: 64 bits for decreasing brightness from left to right."""
    gray = image.convert("L").resize((9, 8)).tobytes()
    bits = 0
    for row in range(8):
        for column in range(8):
            position = row * 9 + column
            bits = bits << 1 | (gray[position] > gray[position + 1])
    return f"{bits:016x}"


def make_task(work_ms: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the function for one row, which takes at least `work_ms`."""

    def run(row: dict[str, Any]) -> dict[str, Any]:
        begun = time.perf_counter()
        name = (row["key"] or b"").decode(errors="replace")
        result = {"name": name, **make_thumbnail(row["value"] or b"")}
        # Wait for the rest of the time, as a task does that calls a model or a store.
        time.sleep(max(0.0, work_ms / 1000 - (time.perf_counter() - begun)))
        return result

    return run


def make_sink(args: argparse.Namespace) -> Callable[[DataFrame, int], None]:
    """Return the function that handles each micro-batch."""
    options, run = arguments.build_options(args), make_task(args.work_ms)

    def write(batch: DataFrame, number: int) -> None:
        began = time.perf_counter()
        rows = batch.select("topic", "partition", "offset", "key", "value", "decodeError")
        judged = outcomes.apply(rows, run, SCHEMA).persist()
        try:
            good = outcomes.select_accepted(judged)
            if args.output:
                good.write.mode("overwrite").parquet(f"{args.output}/batch={number}")
            if args.results_topic:
                results = good.selectExpr(
                    "name as key", "to_json(struct(name, format, width, height, hash)) as value"
                )
                topics.produce(
                    results,
                    {**arguments.select_connection_options(args), "topic": args.results_topic},
                )
            count = judged.count()
            rejected = outcomes.report(judged, options)
        finally:
            judged.unpersist()
        seconds = round(time.perf_counter() - began, 3)
        line = {"batch": number, "images": count, "rejected": rejected, "seconds": seconds}
        print(json.dumps(line), flush=True)

    return write


def main() -> None:
    parser = arguments.build_parser(__doc__ or "", topics="images", group="thumbnails")
    parser.add_argument("--output", default="", help="folder or URI for Parquet")
    parser.add_argument("--results-topic", default="", help="topic for results as JSON")
    parser.add_argument(
        "--work-ms", type=int, default=0, help="minimum time per image in milliseconds"
    )
    args = parser.parse_args()
    spark = (
        SparkSession.builder.appName("image-tasks")
        # Images are large: a thousand of them do not fit well into one Arrow batch.
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "64")
        .getOrCreate()
    )
    shoal_spark.register(spark)
    rows = arguments.load(spark, args, includeDecodeErrors="true")
    writer = rows.writeStream.foreachBatch(make_sink(args))
    arguments.configure_writer(writer, args).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
