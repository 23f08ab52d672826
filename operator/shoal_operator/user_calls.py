"""The operator's calls on users: permissions, passwords and quotas in the brokers."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from shoal.client.configs import AlterOperation, ConfigChange, Resource, ResourceType
from shoal.client.errors import KafkaError
from shoal.client.quotas import USER, of_user
from shoal.client.secret import Secret
from shoal.client.security_admin import SALT_SIZE, AclFilter, ScramMechanism, ScramUpsertion
from shoal.security import revocations

from shoal_operator.batches import chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from shoal.client.admin import Admin
    from shoal.security.acls import Acl
    from shoal.security.revocations import Revocation

#: The brokers' config with the revoked certificates.
REVOKED = "shoal.ssl.revoked.subjects"
_EVERYONE = Resource(ResourceType.BROKER, "")


class UserCalls:
    """Calls of one connection; `count` is called with the name of each API."""

    def __init__(self, admin: Admin, count: Callable[[str], None]) -> None:
        self._admin, self._count = admin, count

    async def acls(self) -> list[Acl]:
        """Return all access control entries. Raises `KafkaError`, SECURITY_DISABLED without an
        authorizer."""
        self._count("DescribeAcls")
        return await self._admin.acls.describe()

    async def change_acls(
        self, *, add: Collection[Acl], remove: Collection[Acl]
    ) -> dict[str, KafkaError]:
        """Add and remove access control entries; return the errors by principal."""
        failures: dict[str, KafkaError] = {}
        for some in chunks(sorted(add)):
            self._count("CreateAcls")
            made = await self._admin.acls.create(some)
            failures |= {acl.principal: error for acl, error in made.items() if error}
        for some in chunks(sorted(remove)):
            self._count("DeleteAcls")
            gone = await self._admin.acls.delete(AclFilter(*acl) for acl in some)
            failures |= {
                str(one.principal): error
                for one, error in gone.items()
                if isinstance(error, KafkaError)
            }
        return failures

    async def quotas(self) -> dict[str, dict[str, float]]:
        """Return the quotas of users, by the name in the principal."""
        self._count("DescribeClientQuotas")
        found = await self._admin.quotas.describe(any_of=USER)
        return {e[0][1]: quotas for e, quotas in found.items() if len(e) == 1 and e[0][1]}

    async def change_quotas(
        self, changes: Mapping[str, Mapping[str, float | None]]
    ) -> dict[str, KafkaError]:
        """Set quotas of users, or remove those that are None; return the errors by user."""
        failures: dict[str, KafkaError] = {}
        for some in chunks(sorted(changes)):
            self._count("AlterClientQuotas")
            wanted = {of_user(user): changes[user] for user in some}
            done = await self._admin.quotas.alter(wanted)
            failures |= {str(entity[0][1]): error for entity, error in done.items() if error}
        return failures

    async def revocations(self) -> dict[str, Revocation]:
        """Return the revoked certificates by subject; none if the brokers' release has no such
        list. Raises `KafkaError`."""
        self._count("DescribeConfigs")
        found = (await self._admin.configs.describe([_EVERYONE], keys=[REVOKED]))[_EVERYONE]
        if isinstance(found, KafkaError):
            raise found
        text = found[REVOKED].value if REVOKED in found else ""
        return revocations.by_subject(text.split(",")) if text else {}

    async def change_revocations(
        self, *, add: Collection[Revocation], remove: Collection[Revocation]
    ) -> None:
        """Add entries to the list of revoked certificates, then remove others. Raises
        `KafkaError`."""
        for operation, some in ((AlterOperation.APPEND, add), (AlterOperation.SUBTRACT, remove)):
            if some:
                self._count("IncrementalAlterConfigs")
                text = ",".join(map(str, some))
                change = ConfigChange(REVOKED, text, operation)
                done = await self._admin.configs.alter({_EVERYONE: [change]})
                if error := done[_EVERYONE]:
                    raise error

    async def with_passwords(self, users: Sequence[str]) -> set[str]:
        """Return those users that have a credential for SCRAM-SHA-512."""
        found: dict[str, Any] = {}
        for some in chunks(users):
            self._count("DescribeUserScramCredentials")
            found |= await self._admin.users.describe(some)
        return {
            user
            for user, infos in found.items()
            if not isinstance(infos, KafkaError)
            and str(ScramMechanism.SCRAM_SHA_512) in [info.mechanism for info in infos]
        }

    async def set_passwords(self, passwords: Mapping[str, str]) -> dict[str, KafkaError]:
        """Set the passwords of users for SCRAM-SHA-512; return the errors by user."""
        failures: dict[str, KafkaError] = {}
        for some in chunks(sorted(passwords)):
            hashed = await asyncio.to_thread(
                lambda names: [
                    ScramUpsertion.of(
                        name,
                        ScramMechanism.SCRAM_SHA_512,
                        Secret(passwords[name]),
                        secrets.token_bytes(SALT_SIZE),
                    )
                    for name in names
                ],
                some,
            )
            self._count("AlterUserScramCredentials")
            done = await self._admin.users.alter(hashed)
            failures |= {user: error for user, error in done.items() if error}
        return failures

    async def delete_passwords(self, users: Sequence[str]) -> dict[str, KafkaError]:
        """Delete the credentials of users for SCRAM-SHA-512; return the errors by user."""
        failures: dict[str, KafkaError] = {}
        for some in chunks(users):
            self._count("AlterUserScramCredentials")
            gone = [(user, ScramMechanism.SCRAM_SHA_512) for user in some]
            done = await self._admin.users.alter(deletions=gone)
            failures |= {user: error for user, error in done.items() if error}
        return failures
