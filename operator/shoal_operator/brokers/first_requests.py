"""The requests with which the operator makes the topics and groups of a new cluster ready.

What they need is loaded and compiled when they are first used, a quarter of a second together.
`shoal up` does that while the brokers start, when it has nothing else to do.
"""

from __future__ import annotations

import asyncio

from shoal.protocol import codec
from shoal.protocol.api import ApiKey

#: A client negotiates with this version, which all brokers know.
_NEGOTIATION = (ApiKey.API_VERSIONS, 4)
_APIS = (
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.METADATA,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.API_VERSIONS,
    ApiKey.CREATE_TOPICS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.FIND_COORDINATOR,
    ApiKey.SHARE_GROUP_DESCRIBE,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.STREAMS_GROUP_DESCRIBE,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_OFFSETS,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
)
#: APIs with their versions, in the order in which they are needed.
FIRST_REQUESTS = (_NEGOTIATION, *((key, codec.find_known_versions(key)[-1]) for key in _APIS))


async def prepare_first_requests() -> None:
    """Prepare them one by one, with a turn of the loop for others in between."""
    for api_key, version in FIRST_REQUESTS:
        codec.prepare(api_key, version)
        await asyncio.sleep(0)
