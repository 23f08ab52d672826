"""Rules for transactions in a simulated cluster, checked by what its clients saw.

Processors read the records of one topic and write one record for each into the output topic. They
commit the next offset in the same transaction. Auditors read the output topic read-committed, and
a read-committed share group reads it too.

* `dirty-read`: an auditor got a record of a transaction that no client asked to commit, or that
  was aborted.
* `committed-changed`: two auditors got different records up to the same offset.
* `past-lso`: a read-committed fetch returned batches at or past its last stable offset.
* `lost-transaction`: a transaction whose commit was acknowledged is missing.
* `torn-transaction`: only a part of a transaction is there.
* `duplicate`: one record of a transaction is there twice.
* `not-exactly-once`: a processed record has two committed outcomes, or none.
* `processed-twice`: a processor started at an offset before one that was committed when it asked.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sim.cluster_kernel import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Where = tuple[str, int]
#: A record that was read, and its offset.
Entry = tuple[int, bytes]


@dataclass
class Transaction:
    """One transaction, as far as its processor has learned."""

    number: int
    source: Where
    #: The offsets that it processes: the first one, and the one that it commits.
    first: int
    next: int = 0
    values: set[bytes] = field(default_factory=set)
    #: The requested end: True for a commit, None before the request.
    asked: bool | None = None
    acknowledged: bool = False


def value_of(transaction: Transaction, offset: int) -> bytes:
    """The output record for the source's record at that offset."""
    return b"%d %d %d" % (transaction.source[1], offset, transaction.number)


class _Audited:
    """The committed records of one output partition, as far as auditors have read."""

    def __init__(self) -> None:
        self.end = 0
        self.entries: list[Entry] = []


class TransactionRules:
    """Takes what processors and auditors see, and raises `Violation` at the first contradiction."""

    def __init__(self) -> None:
        self.transactions: list[Transaction] = []
        self.counts: Counter[str] = Counter()
        #: The offset after the last record whose processing was committed.
        self.processed: dict[Where, int] = {}
        #: Records that the share group got.
        self.shared: set[bytes] = set()
        self._audited: dict[Where, _Audited] = {}

    # Processors.

    def committed(self, source: Where) -> int:
        """Return the offset after the last record whose processing was committed so far."""
        return self.processed.get(source, 0)

    def starts_at(self, source: Where, offset: int, committed: int) -> None:
        """A processor got the offset to start at; `committed` is what was `committed` before it
        asked."""
        if offset < committed:
            raise Violation("processed-twice", f"{source} from {offset}, {committed} was committed")

    def begun(self, source: Where, first: int, next_: int) -> Transaction:
        transaction = Transaction(len(self.transactions), source, first, next_)
        self.transactions.append(transaction)
        transaction.values |= {value_of(transaction, at) for at in range(first, next_)}
        return transaction

    def acknowledged(self, transaction: Transaction) -> None:
        """The requested end was acknowledged."""
        transaction.acknowledged = True
        self.counts["committed" if transaction.asked else "aborted"] += 1
        if transaction.asked:
            known = self.processed.get(transaction.source, 0)
            self.processed[transaction.source] = max(known, transaction.next)

    # Auditors.

    def audited(
        self, who: str, where: Where, first: int, end: int, stable: int, entries: Sequence[Entry]
    ) -> None:
        """`who` has read [first, end) at the last stable offset `stable`."""
        if end > stable:
            raise Violation("past-lso", f"{who} got {where} up to {end}, stable to {stable}")
        for offset, value in entries:
            self._clean(who, where, offset, value)
        known = self._audited.setdefault(where, _Audited())
        there = [e for e in known.entries if first <= e[0] < end]
        here = [e for e in entries if e[0] < known.end]
        if there != here:
            raise Violation("committed-changed", f"{where}: {who} got {here}, before were {there}")
        if first <= known.end < end:
            known.entries += [e for e in entries if e[0] >= known.end]
            known.end = end
        self.counts["audited"] += len(entries)

    def examined(self, who: str, where: Where, offset: int, value: bytes) -> None:
        """A member of a read-committed share group got a record."""
        self._clean(who, where, offset, value)
        self.shared.add(value)

    def _clean(self, who: str, where: Where, offset: int, value: bytes) -> None:
        transaction = self._of(value)
        if not transaction.asked:
            raise Violation("dirty-read", f"{who} at {where} {offset} got {transaction}")

    def _of(self, value: bytes) -> Transaction:
        number = int(value.rsplit(b" ", 1)[1])
        if number >= len(self.transactions) or value not in self.transactions[number].values:
            raise Violation("dirty-read", f"no processor wrote {value!r}")
        return self.transactions[number]

    # At the end.

    def finish(self, final: Iterable[bytes], ends: dict[Where, int]) -> None:
        """Check the run: `final` is the read-committed content, `ends` are the sources' log
        ends."""
        there = Counter(final)
        outcomes: Counter[bytes] = Counter()
        for value, times in there.items():
            if times > 1:
                raise Violation("duplicate", f"{value!r} {times} times")
            outcomes[value.rsplit(b" ", 1)[0]] += 1
        for transaction in self.transactions:
            part = {v for v in transaction.values if v in there}
            if part and not transaction.asked:
                raise Violation("dirty-read", f"{part} of {transaction}")
            if part and part != transaction.values:
                raise Violation("torn-transaction", f"{part} of {transaction}")
            if not part and transaction.asked and transaction.acknowledged:
                raise Violation("lost-transaction", f"{transaction}")
        for (_, partition), end in ends.items():
            for offset in range(end):
                if outcomes[b"%d %d" % (partition, offset)] != 1:
                    times = outcomes[b"%d %d" % (partition, offset)]
                    raise Violation("not-exactly-once", f"{partition} {offset}: {times} times")
