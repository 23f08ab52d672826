"""What the sender of a request may do: the authorizer of this node, and checks against it.

The authorizer follows the committed access control entries. Requests that wait, such as fetches,
compare `generation`, and wake when it changes.

Requests that this node sends to the controller on its own behalf have the principal
`principals.OWN`, which may do everything. No client can have it: no text equals it, and an Envelope
with it needs CLUSTER_ACTION, with which a node can name any principal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shoal.metadata.config_keys import split_principals
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.security import audit
from shoal.security.acls import CLUSTER_NAME, Operation, ResourceType
from shoal.security.authorizer import AllowAllAuthorizer, Authorizer
from shoal.security.principals import OWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.metadata.delta import MetadataDelta
    from shoal.metadata.image import MetadataImage
    from shoal.protocol.frames import RequestHeader
    from shoal.security.requirements import RequestPermission
    from shoal.server.config import BrokerConfig
    from shoal.server.metadata_cache import MetadataCache

#: The purgatory's key of requests that wait and depend on permissions.
CHANGES = "permissions"
#: The code for a refused resource, by its type, as AclEntry.authorizationError.
REFUSED_WITH = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
    ResourceType.DELEGATION_TOKEN: ErrorCode.delegation_token_authorization_failed,
    ResourceType.USER: ErrorCode.delegation_token_authorization_failed,
}


class RequestSender(Protocol):
    """The client that sent a request. Its host is canonical (`canonicalize_host`)."""

    principal: str
    host: str
    listener: str


class AuditLog(Protocol):
    """The audit log of this node."""

    #: Whether it logs allowed requests. Otherwise nobody makes entries for them.
    logs_successes: bool

    def note(self, entry: audit.AuditEntry) -> None:
        """Log an entry, or count it."""


class SentRequest(Protocol):
    """A request and its sender."""

    @property
    def header(self) -> RequestHeader: ...
    @property
    def version(self) -> int: ...
    @property
    def body(self) -> Any: ...
    @property
    def peer(self) -> RequestSender: ...


class RequiredPermission(NamedTuple):
    """Permission that a request needs: one of some operations on a resource."""

    operations: tuple[Operation, ...]
    resource_type: ResourceType
    name: str

    def __str__(self) -> str:
        operations = " or ".join(operation.name for operation in self.operations)
        if self.resource_type is ResourceType.CLUSTER:
            return f"{operations} on the cluster"
        return f"{operations} on the {self.resource_type.name.lower()} {self.name}"


def build_cluster_permission(*operations: Operation) -> RequiredPermission:
    """Return the need of one of these operations on the cluster."""
    return RequiredPermission(operations, ResourceType.CLUSTER, CLUSTER_NAME)


class AccessControl:
    """Owns the authorizer of one node."""

    def __init__(self, config: BrokerConfig, cache: MetadataCache, audit_log: AuditLog) -> None:
        self._audit = audit_log
        self.authorizer: Authorizer | AllowAllAuthorizer = AllowAllAuthorizer()
        #: Whether there is an authorizer. Without one, all is allowed and nothing is checked.
        self.enabled = bool(config["authorizer.class.name"])
        #: The number of changes of the entries.
        self.generation = 0
        self._change_calls: list[Callable[[], None]] = []
        if self.enabled:
            super_users = [OWN, *split_principals(config["super.users"])]
            self.authorizer = Authorizer(
                super_users, allow_if_no_acl=config["allow.everyone.if.no.acl.found"]
            )
            cache.subscribe(self._on_metadata_changed)

    @property
    def logs_successes(self) -> bool:
        """Whether each permission is logged, too."""
        return self.enabled and self._audit.logs_successes

    def start(self, image: MetadataImage) -> None:
        """Take over the entries of the first image, which is loaded from a snapshot and comes
        without a delta."""
        if isinstance(self.authorizer, Authorizer):
            self.authorizer.change(image.acls.values())

    def on_change(self, call: Callable[[], None]) -> None:
        """Call `call` after each change of the entries."""
        self._change_calls.append(call)

    def _on_metadata_changed(self, _image: MetadataImage, delta: MetadataDelta) -> None:
        if delta.acls_added or delta.acls_removed:
            assert isinstance(self.authorizer, Authorizer)
            self.authorizer.change(delta.acls_added, delta.acls_removed)
            self.generation += 1
            for call in self._change_calls:
                call()

    def allows(
        self,
        request: SentRequest,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        *,
        audited: bool = True,
    ) -> bool:
        """Return whether a request's sender may perform an operation on a resource.

        A refusal is `audited` unless the request continues without this permission, or only asks
        what is permitted. Permission is logged at the level debug.
        """
        peer = request.peer
        allowed = self.authorizer.is_allowed(
            peer.principal, peer.host, operation, resource_type, name
        )
        if self.logs_successes if allowed else audited:
            make = audit.build_allowance if allowed else audit.build_refusal
            entry = make(
                principal=peer.principal,
                host=peer.host,
                listener=peer.listener,
                api=ApiKey(request.header.api_key).name,
                operation=operation.name,
                resource=resource_type.name,
                name=name,
            )
            self._audit.note(entry)
        return allowed

    def allows_cluster(
        self, request: SentRequest, operation: Operation, *, audited: bool = True
    ) -> bool:
        """Return whether a request's sender may perform an operation on the cluster."""
        kind = ResourceType.CLUSTER
        return self.allows(request, operation, kind, CLUSTER_NAME, audited=audited)

    def allows_any(
        self, request: SentRequest, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Return whether a request's sender may perform an operation on some resource (KIP-679)."""
        peer = request.peer
        return self.authorizer.is_any_allowed(peer.principal, peer.host, operation, resource_type)

    def filter_permitted(
        self,
        request: SentRequest,
        operation: Operation,
        resource_type: ResourceType,
        names: Iterable[str],
        *,
        audited: bool = True,
    ) -> set[str]:
        """Return the resources among `names` on which the operation is allowed."""
        requested = set(names)
        if not self.enabled:
            return requested
        return {
            name
            for name in requested
            if self.allows(request, operation, resource_type, name, audited=audited)
        }

    def get_operation_bits(
        self, request: SentRequest, resource_type: ResourceType, name: str
    ) -> int:
        """Return the bits of the operations that a request's sender may perform on a resource."""
        peer = request.peer
        return self.authorizer.get_allowed_bits(peer.principal, peer.host, resource_type, name)

    def require(self, request: SentRequest, need: RequiredPermission) -> None:
        """Raise `ApiError` unless one of the operations is allowed."""
        *others, last = need.operations
        kind, name = need.resource_type, need.name
        for operation in others:
            if self.allows(request, operation, kind, name, audited=False):
                return
        if not self.allows(request, last, kind, name):
            raise ApiError(REFUSED_WITH[kind], f"The request needs {need}.")

    def require_all(self, request: SentRequest, permissions: Iterable[RequestPermission]) -> None:
        """Raise `ApiError` for the first of an API's permissions that the sender lacks."""
        for permission in permissions:
            if request.version not in permission.versions:
                continue
            name = getattr(request.body, permission.field) if permission.field else CLUSTER_NAME
            if name is not None:
                need = RequiredPermission(permission.operations, permission.resource_type, name)
                self.require(request, need)
