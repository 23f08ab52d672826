"""What each kind of client needs, as access control entries.

These are the short forms of `shoal acls add` and of a QueueUser. Kafka's `kafka-acls` grants the
same to producers and consumers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    #: The operations by the type of resource.
    Form = Mapping[ResourceType, tuple[Operation, ...]]

PRODUCER: Form = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
#: A member of a consumer group or of a share group.
CONSUMER: Form = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}
#: A redrive, on the topics and groups that dead letters came from. It reads which topic a group's
#: dead letters go to. It also reads the dead-letter topics as a `CONSUMER` of the groups
#: `redrive.TOPIC`, and keeps a `LEDGER`.
REDRIVE: Form = {
    ResourceType.TOPIC: (Operation.READ, Operation.WRITE, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ, Operation.DESCRIBE_CONFIGS),
}
LEDGER: Form = {
    ResourceType.TOPIC: (Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
}
#: The Spark source, which also reads whether the group allows renewals.
SPARK_JOB: Form = {
    **CONSUMER,
    ResourceType.GROUP: (Operation.READ, Operation.DESCRIBE_CONFIGS),
}
