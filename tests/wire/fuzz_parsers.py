"""Coverage-guided fuzzing of every parser that outside bytes reach: `make fuzz`.

`python fuzz_parsers.py --seconds 60` gives each target its share of the time, in a separate process
(libFuzzer ends one at the first finding). Each target may raise the one error that its parser
declares. Anything else, ten seconds for one input, or a gigabyte, is a finding. Inputs that found
something new are kept in `build/fuzz` and start the next run. `--seed` or SEED repeats the
mutations of a run that started from the same inputs.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
KEPT = TESTS.parent / "build" / "fuzz"

try:
    import atheris
except ImportError:
    sys.exit("the fuzzer needs atheris, which exists for Linux: pip install atheris")

#: The process that starts the targets measures nothing itself.
with (
    atheris.instrument_imports(
        include=[
            "kio.serial",
            "shoal.protocol",
            "shoal.record",
            "shoal.log",
            "shoal.coordinator",
            "shoal.metadata.records",
        ]
    )
    if "--target" in sys.argv
    else contextlib.nullcontext()
):
    from shoal.coordinator.contract import CoordinatorRecord
    from shoal.coordinator.group import records as group_records
    from shoal.coordinator.group.consumer import consumer_protocol
    from shoal.coordinator.share import records as share_records
    from shoal.log.config import LogConfig
    from shoal.log.errors import AppendRefused
    from shoal.log.validation import validate
    from shoal.metadata import records as metadata_records
    from shoal.protocol import codec, frames
    from shoal.protocol.api import ApiKey
    from shoal.protocol.errors import WireError
    from shoal.record import batch_validation
    from shoal.record.batch import CorruptBatch, check_crc, iter_headers, sign
    from shoal.record.compression import Compression, decompress
    from shoal.record.control import build_marker, read_marker
    from shoal.record.records import build_batch, read_records
    from shoal.server.handlers import HANDLERS
    from support.attacks.hostile_requests import Author
    from support.runs.seeding import SEED

_CONFIGS = [
    LogConfig(),
    LogConfig(cleanup_policy=("compact",), compression_type="zstd"),
    LogConfig(message_timestamp_type="LogAppendTime", compression_type="gzip"),
]
_EXPANDED_MAX = 1 << 20


def requests(data: bytes) -> None:
    """Parse a frame as the dispatcher does."""
    frame = bytearray(data)
    if len(frame) < 10 or (row := HANDLERS.get(frame[0] << 8 | frame[1])) is None:
        return
    view = memoryview(frame)
    with contextlib.suppress(WireError):
        header = frames.read_request_header(view, row.versions)
        if header.api_version in row.versions:
            if row.read is not None:
                row.read(header.api_version, view, header.body_at)
            else:
                codec.read_request(
                    header.api_key, header.api_version, view.toreadonly(), header.body_at
                )


def responses(data: bytes) -> None:
    """Parse a broker's response as our client does."""
    if len(data) < 3 or (row := HANDLERS.get(data[0])) is None:
        return
    with contextlib.suppress(WireError):
        codec.read_response(row.key, row.versions[data[1] % len(row.versions)], data[2:])


def batches(data: bytes) -> None:
    """Parse record batches, once unchanged and once with a valid CRC."""
    for batch in (data, _signed(data)):
        with contextlib.suppress(CorruptBatch):
            for at, header in iter_headers(batch):
                check_crc(batch, at, header)
                for _ in read_records(batch, at, bytes_max=_EXPANDED_MAX):
                    pass
                if header.is_control:
                    read_marker(batch, at)
        for config in _CONFIGS:
            with contextlib.suppress(AppendRefused):
                validate(batch, config, 0)


def _signed(data: bytes) -> bytes:
    batch = bytearray(data)
    if len(batch) >= 61:
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
        batch[16] = 2
        sign(batch)
    return bytes(batch)


def compressions(data: bytes) -> None:
    if data:
        with contextlib.suppress(CorruptBatch):
            decompress(data[0] % (len(Compression) + 1), data[1:], _EXPANDED_MAX)


def walks(data: bytes) -> None:
    """Walk records as the log does, compiled and in Python."""
    if len(data) >= 4:
        words = (data[4:], data[0], int.from_bytes(data[1:4], "big"), 50, 1 << 20, True, 4)
        found = batch_validation.validate_in_python(*words)
        assert batch_validation.native is None or batch_validation.native.walk(*words) == found


def state(data: bytes) -> None:
    """Parse records of internal topics, as a coordinator finds them on disk."""
    cut = data[0] if data else 0
    record = CoordinatorRecord(data[1 : 1 + cut], data[1 + cut :])
    for decode in (group_records.decode, share_records.decode):
        with contextlib.suppress(WireError):
            decode(record)
    share_records.read_update(data)
    with contextlib.suppress(WireError):
        metadata_records.decode(data)
    with contextlib.suppress(WireError):
        consumer_protocol.read_subscription(data)


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (requests, responses, batches, walks, compressions, state)
}


def seeds(target: str, seed: int) -> Iterator[bytes]:
    """Yield valid inputs to start from."""
    author = Author(random.Random(seed), ["a", "b"])
    if target == "requests":
        for row in HANDLERS.values():
            for version in row.versions:
                yield author.request(ApiKey(row.key), version, 1)[4:]
    elif target == "walks":
        rows = [(i, b"k", b"v" * i, (("h", b"x"),)) for i in range(4)]
        yield bytes((4, 0, 0, 9)) + bytes(build_batch(rows))[61:]
    elif target in ("batches", "compressions"):
        for codec_ in Compression:
            rows = [(i, b"k", b"v" * i, (("h", b"x"),)) for i in range(4)]
            batch = bytes(build_batch(rows, compression=codec_.name.lower()))
            yield batch if target == "batches" else bytes([codec_]) + batch[61:]
        marker = {"producer_id": 1, "producer_epoch": 0, "coordinator_epoch": 0, "timestamp_ms": 0}
        if target == "batches":
            yield bytes(build_marker(committed=True, **marker))


def fuzz(target: str, seconds: int, seed: int) -> None:
    """Fuzz one target in this process, which then ends."""
    kept = KEPT / target
    kept.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds(target, seed)):
        (kept / f"seed-{number}").write_bytes(data)
    flags = [
        f"-max_total_time={seconds}",
        f"-seed={seed % (1 << 32) or 1}",
        "-timeout=10",
        "-rss_limit_mb=1024",
        "-max_len=4096",
        "-print_final_stats=1",
        "-verbosity=0",
        f"-artifact_prefix={KEPT}/found-{target}-",
    ]
    atheris.Setup([sys.argv[0], *flags, str(kept)], TARGETS[target])
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=300, help="for all targets together")
    parser.add_argument("--target", choices=TARGETS, help="one target, in this process")
    parser.add_argument("--input", type=Path, help="run one unchanged input through --target")
    parser.add_argument(
        "--seed", type=int, default=SEED, help="seed of the mutations; SEED, or a new one"
    )
    words = parser.parse_args()
    if words.input is not None:
        TARGETS[words.target](words.input.read_bytes())
    elif words.target is not None:
        fuzz(words.target, words.seconds, words.seed)
    else:
        print(f"SEED={words.seed}", flush=True)
        share, failed = max(1, words.seconds // len(TARGETS)), []
        for target in TARGETS:
            begun = time.monotonic()
            command = [sys.executable, __file__, "--target", target, "--seconds", str(share)]
            command += ["--seed", str(words.seed)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            counts = [x for x in done.stderr.splitlines() if "number_of_executed_units" in x]
            count = counts[0].split()[-1] if counts else "?"
            print(f"{target}: {count} inputs in {time.monotonic() - begun:.0f} s", flush=True)
            if done.returncode:
                failed.append(target)
                print(done.stdout[-3000:], done.stderr[-3000:], sep="\n", flush=True)
        if failed:
            sys.exit(
                f"found something in {', '.join(failed)} with --seed {words.seed};"
                f" the inputs are in {KEPT}"
            )


if __name__ == "__main__":
    main()
