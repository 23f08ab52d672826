"""The files of a partition's ids: written from full tables, merged, loaded and removed.

All work on the disk is a `Work`, whose steps may run in a thread, one after the other, while the
index is used. Only `finish`, on the owner's thread, changes the index. There are three kinds:

* To *load* the files that an earlier index left. They can be used up to an offset if they have all
  ids below it that are not expired, and if the log has not been truncated below it since: then the
  epoch of its last record is another one (KIP-101). Other files are removed.
* To *flush* a frozen table. It comes before merges, because appends may wait for it.
* To *merge* the latest files, if together they are as large as the one before them. So there are
  few files, each is about half as large as the one before it, and an id is written once for each
  time that the number of ids doubles. Expired ids are left out.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from shoal.log.dedup_file import SUFFIX, CorruptIdFile, FileRange, IdFile, write_file
from shoal.log.dedup_index import read_window_and_floor
from shoal.log.dedup_table import OFFSETS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shoal.log.dedup_file import Source
    from shoal.log.dedup_index import DedupIndex, FrozenIds
    from shoal.log.log import Log
    from shoal.log.storage import Storage

#: Work is tried again after this time, in ms, if the disk has refused it.
RETRY_MS = 10_000
#: Makes names of files that are being written, which a later owner does not use.
_aside_numbers = itertools.count()


class _Abandoned(Exception):
    """The owner of the work is gone."""


class Work:
    """Work on the disk. Run `step` until `is_done`, and then `finish`."""

    def __init__(self, steps: Iterator[None], on_end: Callable[[Exception | None], None]) -> None:
        self._steps = steps
        self._on_end = on_end
        self._error: Exception | None = None
        self.is_done = False

    def step(self) -> None:
        """Do the next part, about two milliseconds; the last one syncs. Raises nothing."""
        try:
            next(self._steps)
        except StopIteration:
            self.is_done = True
        except (OSError, CorruptIdFile) as error:
            self._error, self.is_done = error, True

    def finish(self) -> None:
        """Apply the result to the index. Raises what the steps have: `CorruptIdFile`, `OSError`."""
        self._on_end(self._error)
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """End it without a result, between two steps."""
        self._steps.close()  # type: ignore[attr-defined]
        self._on_end(_Abandoned())


class IdStore:
    """The files of one partition, for one `Deduplication`."""

    def __init__(self, log: Log) -> None:
        self._log = log
        names = list_names(log.storage, log.directory)
        #: Files to load.
        self._paths = [f"{log.directory}/{name}" for name in names]
        numbers = [int(name.partition(".")[0]) for name in names]
        self._numbers = itertools.count(1 + max(numbers, default=0))
        self._load: Work | None = None
        self._flush: Work | None = None
        self._merge: Work | None = None
        self._retry_ms = 0
        #: Why files that were here are not used, until their owner has told it.
        self.damaged: list[CorruptIdFile] = []

    @property
    def is_loaded(self) -> bool:
        """Whether no files are left to load."""
        return not self._paths

    def find_work(self, index: DedupIndex, start: int, now_ms: int) -> Work | None:
        """Return what is to do next. `start` is the offset from which the log would be read without
        files."""
        if self._paths:
            self._load = self._load or self._begin_load(index, start)
            return self._load
        if now_ms < self._retry_ms:
            return None
        if self._flush is None and index.frozen is not None:
            self._flush = self._begin_flush(index, index.frozen, now_ms)
        if self._flush is not None:
            return self._flush
        if self._merge is None:
            files = choose_files(index.files)
            if files:
                self._merge = self._begin_merge(index, files, now_ms)
        return self._merge

    def has_work(self, index: DedupIndex, now_ms: int) -> bool:
        """Whether `find_work` may return any, or files wait to be removed."""
        if index.garbage or self._paths:
            return True
        return now_ms >= self._retry_ms and (index.frozen is not None or self._merge is not None)

    def abandon(self) -> None:
        """End all work: the owner is gone."""
        for work in (self._load, self._flush, self._merge):
            if work is not None:
                work.abandon()

    # Loading

    def _begin_load(self, index: DedupIndex, start: int) -> Work:
        storage, opened = self._log.storage, list[IdFile]()

        def read() -> Iterator[None]:
            for path in self._paths:
                try:
                    opened.append(IdFile(storage.open(path)))
                except CorruptIdFile as error:
                    self.damaged.append(error)
                except OSError as error:
                    self.damaged.append(CorruptIdFile(path, f"cannot be read: {error}"))
                yield

        def on_end(error: Exception | None) -> None:
            self._load = None
            if error is not None:
                return
            usable = [file for file in opened if self._is_of_log(file)]
            files = choose_chain(usable, index.window_ms, start)
            if files:
                index.restore(files)
            kept = {file.path for file in files}
            index.garbage += [path for path in self._paths if path not in kept]
            self._paths = []

        return Work(read(), on_end)

    def _is_of_log(self, file: IdFile) -> bool:
        """Whether the log still has the records of a file, and later offsets fit its base."""
        log, about = self._log, file.range
        return (
            about.end <= log.log_end_offset
            and log.epochs.find_epoch(about.end - 1) == about.epoch
            and has_room(about.base, log.log_end_offset)
        )

    # Writing

    def _begin_flush(self, index: DedupIndex, frozen: FrozenIds, now_ms: int) -> Work:
        epoch = self._log.epochs.find_epoch(frozen.end - 1)
        about = FileRange(frozen.table.base, frozen.first, frozen.end, epoch)

        def apply(file: IdFile | None) -> bool:
            self._flush = None
            if file is None or index.frozen is not frozen:
                return False
            index.frozen = None
            index.files.append(file)
            return True

        return self._begin_write(index, (frozen.table,), about, frozen.state, apply, now_ms)

    def _begin_merge(self, index: DedupIndex, files: list[IdFile], now_ms: int) -> Work:
        newest = files[-1]
        about = newest.range._replace(first=files[0].range.first)

        def apply(file: IdFile | None) -> bool:
            self._merge = None
            # The oldest ones may have expired meanwhile.
            left = [source for source in files if source in index.files]
            if file is None or not left:
                return False
            at = index.files.index(left[0])
            index.files[at : at + len(left)] = [file]
            index.garbage += [source.path for source in left]
            return True

        return self._begin_write(index, files, about, newest.state, apply, now_ms)

    def _begin_write(
        self,
        index: DedupIndex,
        sources: Sequence[Source],
        about: FileRange,
        state: bytes,
        apply: Callable[[IdFile | None], bool],
        now_ms: int,
    ) -> Work:
        """Begin to write a file. `apply` gets it, or None without one, and returns whether it is of
        use."""
        storage = self._log.storage
        path = f"{self._log.directory}/{next(self._numbers):08d}{SUFFIX}"
        aside = f"{path}.{next(_aside_numbers)}.tmp"
        floor, opened = index.floor - about.base, list[IdFile]()

        def write() -> Iterator[None]:
            yield from write_file(
                storage,
                aside,
                sources,
                about,
                state,
                floor=floor,
                filter_bits_max=index.filter_bits_max,
            )
            opened.append(IdFile(storage.open(aside)))

        def on_end(error: Exception | None) -> None:
            file = opened[0] if error is None else None
            if apply(file) and file is not None:
                # Whether the name is durable does not matter: the log has all of it.
                storage.rename(aside, path)
                file.path = path
                return
            storage.remove(aside)
            if isinstance(error, OSError):
                self._retry_ms = now_ms + RETRY_MS

        return Work(write(), on_end)


def list_names(storage: Storage, directory: str) -> list[str]:
    """Return the names of the files of ids in a log's directory."""
    names = (name for name in storage.list_directory(directory) if name.endswith(SUFFIX))
    return [name for name in names if name[: -len(SUFFIX)].isdigit()]


def remove_files(storage: Storage, directory: str) -> None:
    """Remove all files of ids of a log. Raises `OSError`."""
    for name in list_names(storage, directory):
        storage.remove(f"{directory}/{name}")


def has_room(base: int, log_end_offset: int) -> bool:
    """Whether a base still fits the offsets of a log, and of years to come."""
    return log_end_offset - base < OFFSETS_MAX // 2


def choose_files(files: list[IdFile]) -> list[IdFile]:
    """Return the latest files that are merged, the oldest first; empty if they need not be."""
    at, size = len(files) - 1, 0
    while at >= 0 and (not size or len(files[at]) <= size):
        size += len(files[at])
        at -= 1
    chosen = files[at + 1 :]
    return chosen if len(chosen) > 1 else []


def choose_chain(files: list[IdFile], window_ms: int, start: int) -> list[IdFile]:
    """Return the files that together have all ids of the window below the end of the last one, the
    oldest first; empty without such. The window begins at the offset `start`."""
    files = sorted(files, key=lambda file: (-file.range.end, file.range.first))
    for at, newest in enumerate(files):
        if newest.range.end <= start:
            break
        chain = [newest]
        for file in files[at + 1 :]:
            if file.range.base == newest.range.base and (
                file.range.first < chain[-1].range.first <= file.range.end
            ):
                chain.append(file)
        stored_window_ms, floor = read_window_and_floor(newest.state)
        first = chain[-1].range.first
        if first <= floor and (window_ms <= stored_window_ms or first <= start):
            return chain[::-1]
    return []
