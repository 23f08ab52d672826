"""The operator's calls on users: permissions, passwords and quotas in the brokers."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from shoal.client.admin.configs import (
    AlterOperation,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
)
from shoal.client.admin.quotas import USER, make_user_entity
from shoal.client.admin.security_admin import SALT_SIZE, AclFilter, ScramMechanism, ScramUpsertion
from shoal.client.errors import KafkaError
from shoal.client.security.secret import Secret
from shoal.security import revocations

from shoal_operator.brokers.batches import split_into_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from shoal.client.admin.admin import Admin
    from shoal.security.acls import Acl
    from shoal.security.revocations import Revocation

#: The brokers' config with the revoked certificates.
REVOKED = "shoal.ssl.revoked.subjects"
_EVERYONE = ConfigResource(ConfigResourceType.BROKER, "")


class UserCalls:
    """Calls of one connection; `count` is called with the name of each API."""

    def __init__(self, admin: Admin, count: Callable[[str], None]) -> None:
        self._admin, self._count = admin, count

    async def list_acls(self) -> list[Acl]:
        """Return all access control entries. Raises `KafkaError`, SECURITY_DISABLED without an
        authorizer."""
        self._count("DescribeAcls")
        return await self._admin.acls.describe()

    async def change_acls(
        self, *, add: Collection[Acl], remove: Collection[Acl]
    ) -> dict[str, KafkaError]:
        """Add and remove access control entries; return the errors by principal."""
        failures: dict[str, KafkaError] = {}
        for batch in split_into_batches(sorted(add)):
            self._count("CreateAcls")
            created = await self._admin.acls.create(batch)
            failures |= {acl.principal: error for acl, error in created.items() if error}
        for batch in split_into_batches(sorted(remove)):
            self._count("DeleteAcls")
            deleted = await self._admin.acls.delete(AclFilter(*acl) for acl in batch)
            failures |= {
                str(acl_filter.principal): error
                for acl_filter, error in deleted.items()
                if isinstance(error, KafkaError)
            }
        return failures

    async def describe_quotas(self) -> dict[str, dict[str, float]]:
        """Return the quotas of users, by the name in the principal."""
        self._count("DescribeClientQuotas")
        results = await self._admin.quotas.describe(any_of=USER)
        return {e[0][1]: quotas for e, quotas in results.items() if len(e) == 1 and e[0][1]}

    async def change_quotas(
        self, changes: Mapping[str, Mapping[str, float | None]]
    ) -> dict[str, KafkaError]:
        """Set quotas of users, or remove those that are None; return the errors by user."""
        failures: dict[str, KafkaError] = {}
        for batch in split_into_batches(sorted(changes)):
            self._count("AlterClientQuotas")
            alterations = {make_user_entity(user): changes[user] for user in batch}
            results = await self._admin.quotas.alter(alterations)
            failures |= {str(entity[0][1]): error for entity, error in results.items() if error}
        return failures

    async def list_revocations(self) -> dict[str, Revocation]:
        """Return the revoked certificates by subject; none if the brokers' release has no such
        list. Raises `KafkaError`."""
        self._count("DescribeConfigs")
        configs = (await self._admin.configs.describe([_EVERYONE], keys=[REVOKED]))[_EVERYONE]
        if isinstance(configs, KafkaError):
            raise configs
        text = configs[REVOKED].value if REVOKED in configs else ""
        return revocations.parse_by_subject(text.split(",")) if text else {}

    async def change_revocations(
        self, *, add: Collection[Revocation], remove: Collection[Revocation]
    ) -> None:
        """Add entries to the list of revoked certificates, then remove others. Raises
        `KafkaError`."""
        for operation, entries in ((AlterOperation.APPEND, add), (AlterOperation.SUBTRACT, remove)):
            if entries:
                self._count("IncrementalAlterConfigs")
                text = ",".join(map(str, entries))
                change = ConfigChange(REVOKED, text, operation)
                results = await self._admin.configs.alter({_EVERYONE: [change]})
                if error := results[_EVERYONE]:
                    raise error

    async def list_with_passwords(self, users: Sequence[str]) -> set[str]:
        """Return those users that have a credential for SCRAM-SHA-512."""
        descriptions: dict[str, Any] = {}
        for batch in split_into_batches(users):
            self._count("DescribeUserScramCredentials")
            descriptions |= await self._admin.users.describe(batch)
        return {
            user
            for user, infos in descriptions.items()
            if not isinstance(infos, KafkaError)
            and str(ScramMechanism.SCRAM_SHA_512) in [info.mechanism for info in infos]
        }

    async def set_passwords(self, passwords: Mapping[str, str]) -> dict[str, KafkaError]:
        """Set the passwords of users for SCRAM-SHA-512; return the errors by user."""
        failures: dict[str, KafkaError] = {}
        for batch in split_into_batches(sorted(passwords)):
            hashed = await asyncio.to_thread(
                lambda names: [
                    ScramUpsertion.from_password(
                        name,
                        ScramMechanism.SCRAM_SHA_512,
                        Secret(passwords[name]),
                        secrets.token_bytes(SALT_SIZE),
                    )
                    for name in names
                ],
                batch,
            )
            self._count("AlterUserScramCredentials")
            results = await self._admin.users.alter(hashed)
            failures |= {user: error for user, error in results.items() if error}
        return failures

    async def delete_passwords(self, users: Sequence[str]) -> dict[str, KafkaError]:
        """Delete the credentials of users for SCRAM-SHA-512; return the errors by user."""
        failures: dict[str, KafkaError] = {}
        for batch in split_into_batches(users):
            self._count("AlterUserScramCredentials")
            deletions = [(user, ScramMechanism.SCRAM_SHA_512) for user in batch]
            results = await self._admin.users.alter(deletions=deletions)
            failures |= {user: error for user, error in results.items() if error}
        return failures
