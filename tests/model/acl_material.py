"""Random access control entries and questions about them, for tests of the authorizer.

Names, principals and hosts are few, so that entries and questions meet. Names do not begin with a
character below `*`: a StandardAuthorizer that looks up such a name beside an entry that shares its
beginning never returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.security.acls import Acl, Operation, PatternType, Permission, ResourceType

if TYPE_CHECKING:
    from random import Random

TYPES = [kind for kind in ResourceType if kind > ResourceType.ANY]
OPERATIONS = [operation for operation in Operation if operation > Operation.ANY]
PRINCIPALS = ["User:alice", "User:bob", "User:ANONYMOUS", "User:CN=a,O=b"]
HOSTS = ["127.0.0.1", "10.0.0.7", "fe80::1"]
#: Networks as hosts of entries: some with several, some with none of the hosts, one that is none.
NETWORKS = ["10.0.0.0/8", "10.0.0.9/29", "0.0.0.0/0", "127.0.0.1/32", "fe80::/10", "::/0", "10.1/8"]
#: Other spellings of the hosts, as sockets report them.
SPELLINGS = {"127.0.0.1": "::ffff:127.0.0.1", "10.0.0.7": "::ffff:a00:7", "fe80::1": "FE80:0::1"}


class Question(NamedTuple):
    """The arguments of `Authorizer.is_allowed`."""

    principal: str
    host: str
    operation: Operation
    resource_type: ResourceType
    name: str


class Material:
    """Entries of one draw, and questions that concern them."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._types = rng.sample(TYPES, 2)
        self._operations = rng.sample(OPERATIONS, rng.choice((1, 4)))
        self._principals = rng.sample(PRINCIPALS, rng.choice((1, 3)))
        self.super_users = rng.sample(PRINCIPALS, rng.choice((0, 0, 1)))

    def _name(self) -> str:
        return "".join(self._rng.choices("ab", k=self._rng.randrange(1, 4)))

    def acl(self) -> Acl:
        rng = self._rng
        host = rng.choice([*HOSTS, "*", "*", *rng.choices(NETWORKS, k=2)])
        pattern = rng.choice((PatternType.LITERAL, PatternType.PREFIXED))
        return Acl(
            rng.choice(self._types),
            "*" if rng.random() < 0.15 else self._name(),
            pattern,
            rng.choice([*self._principals, "User:*"]),
            SPELLINGS.get(host, host) if rng.random() < 0.3 else host,
            rng.choice(self._operations),
            Permission.DENY if rng.random() < 0.3 else Permission.ALLOW,
        )

    def acls(self, count: int) -> list[Acl]:
        """Return up to `count` entries, all different."""
        return list(dict.fromkeys(self.acl() for _ in range(count)))

    def question(self) -> Question:
        rng = self._rng
        host = rng.choice(HOSTS)
        return Question(
            rng.choice(self._principals),
            SPELLINGS[host] if rng.random() < 0.3 else host,
            # An entry of another operation may imply this one.
            rng.choice([*self._operations, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS]),
            rng.choice(self._types),
            self._name(),
        )

    def questions(self, count: int) -> list[Question]:
        found = [self.question() for _ in range(count)]
        return [q for q in found if q.operation != Operation.ALL]
