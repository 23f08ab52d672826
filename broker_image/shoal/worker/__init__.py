"""Workers of share groups: functions that handle the records of a topic, one job each.

`Worker` and its `handler` decorator are the entry point, and `Queue` enqueues. A handler that
returns accepts its record; an exception releases it with a back-off, `Retry` chooses the wait, and
`Reject` sends it to the dead letters. docs/worker.md is the guide.

`consumer` acquires and settles, `lanes` run jobs, and `executors` call functions. The other modules
are parts of these.
"""

from shoal.client.queues.cancellations import CancelReport
from shoal.protocol.share import CancelOutcome
from shoal.worker.jobs import Job
from shoal.worker.outcomes import (
    Accepted,
    JobLost,
    PayloadError,
    Reject,
    Rejected,
    Released,
    Retry,
    TimedOut,
)
from shoal.worker.payloads import Codec
from shoal.worker.queue import Queue, SyncQueue
from shoal.worker.worker import Worker

__all__ = [
    "Accepted",
    "CancelOutcome",
    "CancelReport",
    "Codec",
    "Job",
    "JobLost",
    "PayloadError",
    "Queue",
    "Reject",
    "Rejected",
    "Released",
    "Retry",
    "SyncQueue",
    "TimedOut",
    "Worker",
]
