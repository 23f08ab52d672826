"""What the transaction coordinator answers: every request in every state, for every producer.

`tests/unit/transaction/test_answers.py` asks the state machine, `tests/compat/` asks Apache Kafka
and Shoal over the wire. The answers are those of Kafka 4.4.0, and that of KAFKA-20785 where
`SINCE_KAFKA_20785` says so.
"""

from __future__ import annotations

from shoal.protocol.errors import ErrorCode

#: The producer that a request names: the epoch of the state, one before and after it, two before
#: it, and another producer id with the epoch of the state. Where markers are being written, the
#: epoch of the state is the one that the response of EndTxn version 5 had; its request had the one
#: before.
WRITERS = ("older", "before", "current", "next", "other")

#: One letter for each writer.
_LETTERS = {
    ".": ErrorCode.none,
    "A": ErrorCode.transaction_abortable,
    "C": ErrorCode.concurrent_transactions,
    "F": ErrorCode.producer_fenced,
    "I": ErrorCode.invalid_txn_state,
    "M": ErrorCode.invalid_producer_id_mapping,
}

#: The requests: `init` is InitProducerId with the id and epoch of the writer; `add` and `verify`
#: are AddPartitionsToTxn; `commit` and `abort` are EndTxn up to version 4, and with `2` version 5.
_TABLE = """
                init   add    verify commit abort  commit2 abort2
Empty           FF.FF  FF.FM  FFAFM  FFIFM  FFIFM  FFIFM   FF.FM
Ongoing         CCCCF  FF.FM  FF.FM  FF.FM  FF.FM  FF.FM   FF.FM
PrepareCommit   CCCCC  CCCCC  FFCFM  FFCFM  FFCFM  CCCCC   CCCCC
PrepareAbort    CCCCC  CCCCC  FFCFM  FFCFM  FFCFM  CCCCC   CCCCC
CompleteCommit  F..FF  FF.FM  FFAFM  FF.FM  FFIFM  F.IFM   FI.FM
CompleteAbort   F..FF  FF.FM  FFAFM  FFIFM  FF.FM  FFIFM   F..FM
"""

#: A commit after the coordinator has aborted the transaction: Kafka 4.4.0 answers
#: INVALID_TXN_STATE, which no client survives.
SINCE_KAFKA_20785 = ("CompleteAbort", "commit2", "before")

#: By state, request and writer.
ANSWERS: dict[tuple[str, str, str], ErrorCode] = {}


def _read_table() -> None:
    head, *rows = _TABLE.strip().splitlines()
    for row in rows:
        state, *answers = row.split()
        for request, letters in zip(head.split(), answers, strict=True):
            for writer, letter in zip(WRITERS, letters, strict=True):
                ANSWERS[(state, request, writer)] = _LETTERS[letter]


_read_table()
