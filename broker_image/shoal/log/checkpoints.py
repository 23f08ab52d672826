"""Kafka's small text files: offset checkpoints, a log's leader epochs, its directory's identity.

A checkpoint has a version line "0", a line with the number of entries, and one line per entry. A
reader ignores any other file, and recovery then takes longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from shoal.log.storage import Storage


def _read_lines(storage: Storage, path: str) -> list[list[str]] | None:
    try:
        return _parse_lines(storage.read_file(path))
    except FileNotFoundError:
        return None


def _parse_lines(data: bytes) -> list[list[str]] | None:
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        return None
    if len(lines) < 2 or lines[0] != "0" or not lines[1].isdigit():
        return None
    entries = [line.split() for line in lines[2:]]
    return entries if len(entries) == int(lines[1]) else None


def _write_lines(storage: Storage, path: str, lines: Sequence[str], sync: bool) -> None:
    text = "\n".join(("0", str(len(lines)), *lines, ""))
    storage.replace_file(path, text.encode(), sync=sync)


def read_offsets(storage: Storage, path: str) -> dict[tuple[str, int], int]:
    """Return offsets by (topic, partition); empty if the checkpoint is missing or invalid."""
    entries = _read_lines(storage, path) or ()
    try:
        return {(topic, int(index)): int(offset) for topic, index, offset in entries}
    except ValueError:
        return {}


def write_offsets(storage: Storage, path: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Write an offset checkpoint atomically and durably."""
    lines = [f"{topic} {index} {offset}" for (topic, index), offset in sorted(offsets.items())]
    _write_lines(storage, path, lines, True)


def read_epochs(storage: Storage, path: str) -> list[tuple[int, int]] | None:
    """Return the (epoch, start offset) pairs of a checkpoint; None if it is missing or invalid."""
    try:
        return parse_epochs(storage.read_file(path))
    except FileNotFoundError:
        return None


def parse_epochs(data: bytes) -> list[tuple[int, int]] | None:
    """Return the (epoch, start offset) pairs in the contents of a checkpoint; None if invalid."""
    entries = _parse_lines(data)
    if entries is None:
        return None
    try:
        return [(int(epoch), int(start)) for epoch, start in entries]
    except ValueError:
        return None


def write_epochs(
    storage: Storage, path: str, entries: Iterable[tuple[int, int]], *, sync: bool
) -> None:
    """Write a leader-epoch checkpoint atomically."""
    _write_lines(storage, path, [f"{epoch} {start}" for epoch, start in entries], sync)


def read_properties(storage: Storage, path: str) -> dict[str, str] | None:
    """Read a Java properties file of `key=value` lines; None if it does not exist."""
    try:
        text = storage.read_file(path).decode()
    except FileNotFoundError:
        return None
    pairs = (line.partition("=") for line in text.splitlines() if line[:1] not in ("", "#", "!"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def write_properties(storage: Storage, path: str, values: Mapping[str, str]) -> None:
    """Write a properties file atomically and durably."""
    text = "#\n" + "".join(f"{key}={values[key]}\n" for key in sorted(values))
    storage.replace_file(path, text.encode(), sync=True)


def read_partition_metadata(storage: Storage, path: str) -> str | None:
    """Return the topic id in a `partition.metadata` file (base64, as Kafka writes it).

    Return None without the file, or if it is empty or has zeros only, as after a power loss. The
    text is empty if the file is damaged.
    """
    try:
        data = storage.read_file(path)
    except FileNotFoundError:
        return None
    if not data.strip(b"\0"):
        return None
    lines = data.decode(errors="replace").splitlines()
    pairs = dict(line.split(": ", 1) for line in lines if ": " in line)
    return pairs.get("topic_id", "") if pairs.get("version") == "0" else ""


def write_partition_metadata(storage: Storage, path: str, topic_id: str) -> None:
    """Write a log directory's topic id (KIP-516). The file is not durable yet."""
    storage.replace_file(path, f"version: 0\ntopic_id: {topic_id}".encode(), sync=False)
