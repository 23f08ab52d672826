"""QueueUsers: credentials, permissions and quotas in the brokers, and the Secrets of clients.

The operator owns all access control entries of a principal that a QueueUser names, its quotas, and
its SCRAM credential. It leaves other principals alone, and quotas of a user with a client id.
"""

from __future__ import annotations

import datetime
import hashlib
import secrets
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import structlog
from shoal.client.errors import KafkaError
from shoal.protocol.errors import ErrorCode

from shoal_operator import certificates, deleted_users, failures, revoked_users
from shoal_operator.batch_reconciler import (
    BatchReconciler,
    Outcome,
    live_cluster,
    of_external,
    owners,
)
from shoal_operator.certificates import BadCertificate, KeyPair
from shoal_operator.cluster.authorities import OWN_CERTIFICATE, parse_authority
from shoal_operator.conditions import Verdict
from shoal_operator.deleted_users import Departure
from shoal_operator.kube import KubeError
from shoal_operator.model import external, listeners, names, secret, security
from shoal_operator.model import users as model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.security.acls import Acl
    from shoal.security.revocations import Revocation

    from shoal_operator.model.names import Manifest

log = structlog.get_logger()
KIND = "QueueUser"
#: Bytes of a generated password before they are encoded.
PASSWORD_BYTES = 24
#: Annotation of a user's Secret: the hash of the password that the brokers have.
APPLIED = f"{names.GROUP}/applied-password"


class Refused(Exception):
    """A user cannot have its Secret; `verdict` says why."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


class Users(BatchReconciler):
    """The reconciler of all QueueUsers of one cluster."""

    kind, noun, retry_seconds = KIND, "user", 5.0
    #: The certificates that the brokers refuse, by subject, as the newest pass has read them.
    _revoked: Mapping[str, Revocation] = MappingProxyType({})

    def name_of(self, resource: Manifest) -> str:
        """Return the user's principal."""
        return model.principal(resource)

    def deletes(self, resource: Manifest) -> bool:
        """Return True: credentials and permissions go with the resource."""
        del resource
        return True

    def conflict(self, resource: Manifest, owner: Manifest) -> Outcome:
        """Return the outcome for a QueueUser whose principal an older QueueUser has."""
        verdict = Verdict.refused(
            "UserClaimed",
            f"{model.principal(resource)} belongs to the older QueueUser "
            f"{owner['metadata']['name']!r}. Delete one of the two.",
        )
        return Outcome(resource, verdict, {})

    async def delete(self, wanted: Sequence[str]) -> Mapping[str, KafkaError]:
        """Delete the credentials, permissions and quotas of principals; return the errors by
        principal."""
        if self._is_external():
            return {}
        errors = await self._remove_access(wanted)
        now = datetime.datetime.now(datetime.UTC)
        leaving = [self._departure(u, now) for u in self._resources()]
        return errors | await self._revoke([one for one in leaving if one.principal in wanted])

    async def apply(self, owned: Sequence[Manifest]) -> list[Outcome]:
        """Bring Secrets, credentials, permissions and quotas to the specs. Raises `ClientError`."""
        if self._is_external():
            return [Outcome(user, of_external(KIND, self._cluster), {}) for user in owned]
        cluster = live_cluster(self._store, self._namespace, self._cluster)
        assert cluster is not None, "the caller has checked it"
        refused: dict[str, Verdict] = {}
        ready: dict[str, Manifest] = {}
        try:
            await self._remove_departed(owned)
        except Exception as error:
            if failures.is_of_all(error):
                raise
            log.exception("deleted users keep their access", cluster=self._cluster)
        self._revoked = await self._tidy_revocations(owned)
        for user in owned:
            try:
                await self._write_secret(cluster, user)
                ready[model.principal(user)] = user
            except Refused as error:
                refused[model.principal(user)] = error.verdict
            except Exception as error:
                refused[model.principal(user)] = failures.report(KIND, user, error)
        # Permissions do not wait for the Secret: those that were taken away must end.
        errors = await self._change_acls({model.principal(u): model.acls(u) for u in owned})
        errors |= await self._set_passwords(list(ready.values()), errors)
        errors |= await self._change_quotas({model.principal(u): model.quotas(u) for u in owned})
        outcomes = []
        for user in owned:
            who = model.principal(user)
            verdict = refused.get(who) or _verdict(errors.get(who))
            fields: dict[str, Any] = {"principal": who}
            if who in ready:
                fields["secret"] = user["metadata"]["name"]
                fields["certificateNotAfter"] = self._not_after(user)
            outcomes.append(Outcome(user, verdict, fields))
        return outcomes

    async def _remove_access(self, wanted: Sequence[str]) -> dict[str, KafkaError]:
        """Delete what principals have in the brokers, except certificates; return the errors."""
        errors = await self._change_acls({principal: set() for principal in wanted})
        errors |= await self._change_quotas({principal: {} for principal in wanted})
        scram = [p.removeprefix("User:") for p in wanted if not p.startswith("User:CN=")]
        found = await self._brokers.users.with_passwords(scram)
        kept = await self._brokers.users.delete_passwords([u for u in scram if u in found])
        return errors | {f"User:{user}": error for user, error in kept.items()}

    def _is_external(self) -> bool:
        cluster = live_cluster(self._store, self._namespace, self._cluster)
        return cluster is not None and external.is_external(cluster)

    # Certificates of deleted users.

    def _trusted(self) -> list[bytes]:
        """Return the clients' authorities; none if the cluster has none."""
        name = security.ca_cert(self._cluster, security.CLIENTS)
        found = self._store.get("Secret", self._namespace, name)
        pem = secret.data_of(found).get("ca.crt", b"") if found else b""
        return certificates.split(pem)

    async def _revoke(self, leaving: Sequence[Departure]) -> dict[str, KafkaError]:
        """Revoke the certificates of deleted QueueUsers; return the errors by principal."""
        trusted = self._trusted()
        cluster = live_cluster(self._store, self._namespace, self._cluster)
        assert cluster is not None, "the caller has checked it"
        days = security.settings(cluster, security.CLIENTS).validity_days
        wanted = {
            entry.subject: entry
            for one in leaving
            if trusted and revoked_users.subject(one.user)
            for entry in [
                revoked_users.of_deleted(
                    one.user,
                    now=one.at,
                    validity=days * certificates.DAY,
                    trusted=trusted,
                    expires=one.expires,
                )
            ]
        }
        if not wanted:
            return {}
        have = await self._brokers.users.revocations()
        room = max(0, revoked_users.ENTRIES_MAX - len(have.keys() - wanted.keys()))
        fits = dict(sorted(wanted.items())[:room])
        old = [have[subject] for subject in fits if subject in have]
        try:
            await self._brokers.users.change_revocations(
                add=fits.values(), remove=[one for one in old if one not in fits.values()]
            )
        except KafkaError as error:
            if error.code != ErrorCode.invalid_config:
                raise
            log.warning("the brokers' release does not revoke certificates", error=str(error))
            return {}
        full = KafkaError(ErrorCode.policy_violation, revoked_users.FULL)
        return {f"User:{subject}": full for subject in wanted.keys() - fits.keys()}

    async def _tidy_revocations(self, owned: Sequence[Manifest]) -> Mapping[str, Revocation]:
        """Remove the entries that are not needed any more; return the others by subject."""
        have = await self._brokers.users.revocations()
        trusted = self._trusted()
        if not have or not trusted:
            return have
        now = datetime.datetime.now(datetime.UTC)
        gone = revoked_users.to_remove(have, owned, now=now, trusted=trusted)
        await self._brokers.users.change_revocations(add=(), remove=gone)
        return {subject: one for subject, one in have.items() if one not in gone}

    # Users that were deleted while the cluster was away.

    def list_names(self) -> list[str]:
        """Return the names of all QueueUsers, and that of the ConfigMap with deleted ones."""
        found = self._store.get("ConfigMap", self._namespace, self._departed_name) or {}
        return [*super().list_names(), *([self._departed_name] if found.get("data") else [])]

    @property
    def _departed_name(self) -> str:
        return deleted_users.name(self._cluster)

    def _departed(self) -> list[Departure]:
        found = self._store.get("ConfigMap", self._namespace, self._departed_name)
        return deleted_users.departures(found)

    def _departure(self, user: Manifest, now: datetime.datetime) -> Departure:
        pem = self._certificate(user)
        return Departure(user, now, certificates.expires(pem) if pem else None)

    async def remember(self, deleted: Sequence[Manifest]) -> None:
        """Note whose access ends when the cluster returns. Raises `KubeError`.

        The authority of clients stays with the volumes; without it, no user ever had access.
        """
        kept = owners(self._resources(), self.name_of)
        had_access = [
            user
            for user in deleted
            if names.FINALIZER in user["metadata"].get("finalizers", [])
            and model.principal(user) not in kept
        ]
        authority = security.ca(self._cluster, security.CLIENTS)
        if not had_access or self._store.get("Secret", self._namespace, authority) is None:
            return
        found = self._store.get("ConfigMap", self._namespace, self._departed_name) or {}
        now = datetime.datetime.now(datetime.UTC)
        want = deleted_users.manifest(
            self._namespace,
            self._cluster,
            [self._departure(user, now) for user in had_access],
            found.get("data") or {},
        )
        try:
            self._store.put(await self._kube.apply(want))
        except KubeError as error:
            # With the namespace, everything of the cluster goes.
            if not error.terminating:
                raise

    async def _remove_departed(self, owned: Sequence[Manifest]) -> None:
        """End the access of users that were deleted while the cluster was away.

        A QueueUser of the same name that was made since then keeps its permissions.
        """
        departed = self._departed()
        if not departed:
            return
        present = {model.principal(user) for user in owned}
        present |= {
            model.principal(user)
            for user in self._resources()
            if not user["metadata"].get("deletionTimestamp")
        }
        gone = sorted({one.principal for one in departed} - present)
        errors = await self._remove_access(gone) | await self._revoke(departed)
        for principal, error in errors.items():
            log.warning("a deleted user keeps its access", principal=principal, error=str(error))
        done = {
            one.user["metadata"]["uid"]: None for one in departed if one.principal not in errors
        }
        found = self._store.get("ConfigMap", self._namespace, self._departed_name)
        assert found is not None, "it has the users"
        changed = await self._kube.merge(
            {**found, "apiVersion": "v1", "kind": "ConfigMap"}, {"data": done}
        )
        if changed is not None:
            self._store.put(changed)

    # Permissions.

    async def _change_acls(self, wanted: Mapping[str, set[Acl]]) -> dict[str, KafkaError]:
        """Give principals exactly these entries; return the errors by principal."""
        try:
            have = await self._brokers.users.acls()
        except KafkaError as error:
            if error.code != ErrorCode.security_disabled:
                raise
            # Without an authorizer, every client may do everything.
            return {who: error for who, entries in wanted.items() if entries}
        mine = {acl for acl in have if acl.principal in wanted}
        entries = {acl for of_one in wanted.values() for acl in of_one}
        return await self._brokers.users.change_acls(add=entries - mine, remove=mine - entries)

    async def _change_quotas(
        self, wanted: Mapping[str, Mapping[str, float]]
    ) -> dict[str, KafkaError]:
        """Give principals exactly these quotas; return the errors by principal."""
        have = await self._brokers.users.quotas()
        changes: dict[str, Mapping[str, float | None]] = {}
        for principal, quotas in wanted.items():
            name = principal.removeprefix("User:")
            old = have.get(name, {})
            new: dict[str, float | None] = {**dict.fromkeys(old), **quotas}
            changed = {key: value for key, value in new.items() if old.get(key) != value}
            if changed:
                changes[name] = changed
        errors = await self._brokers.users.change_quotas(changes)
        return {f"User:{name}": error for name, error in errors.items()}

    # Passwords.

    async def _set_passwords(
        self, users: Sequence[Manifest], failed: Mapping[str, KafkaError]
    ) -> dict[str, KafkaError]:
        """Store the passwords that the brokers do not have; return the errors by principal."""
        scram = [
            u
            for u in users
            if model.authentication(u) == model.SCRAM and model.principal(u) not in failed
        ]
        known = await self._brokers.users.with_passwords([model.username(u) for u in scram])
        stale = {}
        for user in scram:
            own = self._secret(user)
            password = secret.data_of(own)["password"].decode()
            applied = own["metadata"].get("annotations", {}).get(APPLIED)
            if model.username(user) not in known or applied != _digest(user, password):
                stale[model.username(user)] = (user, password)
        errors = await self._brokers.users.set_passwords({u: p for u, (_, p) in stale.items()})
        for name, (user, password) in stale.items():
            if name not in errors:
                patch = {"metadata": {"annotations": {APPLIED: _digest(user, password)}}}
                changed = await self._kube.merge(self._secret(user), patch)
                if changed is not None:
                    self._store.put(changed)
        return {f"User:{name}": error for name, error in errors.items()}

    # Secrets.

    def _secret(self, user: Manifest) -> Manifest:
        found = self._store.get("Secret", self._namespace, user["metadata"]["name"])
        assert found is not None, "it was written before"
        return {**found, "apiVersion": "v1", "kind": "Secret"}

    def _certificate(self, user: Manifest) -> bytes:
        """Return the certificate in a user's Secret; empty without one that can be read."""
        found = self._store.get("Secret", self._namespace, user["metadata"]["name"])
        pem = secret.data_of(found).get("user.crt", b"") if found else b""
        try:
            certificates.load(pem)
        except BadCertificate:
            return b""
        return pem

    def _not_after(self, user: Manifest) -> str:
        pem = self._certificate(user)
        return certificates.not_after(pem) if pem else ""

    async def _write_secret(self, cluster: Manifest, user: Manifest) -> None:
        """Write the Secret of a user. Raises `Refused`, `KubeError`."""
        name = user["metadata"]["name"]
        listener = model.listener(cluster, user)
        if listener is None:
            wanted = model.LISTENER_OF[model.authentication(user)]
            raise Refused(
                Verdict.waiting(
                    "NoListenerForUser",
                    f"QueueCluster {self._cluster!r} has no listener with authentication of the "
                    f"type {wanted}. Add one, or change spec.authentication.",
                )
            )
        have = await self._own_secret(name)
        data = model.secret_data(
            user,
            listeners.bootstrap_servers(cluster, listener),
            await self._authority_of(listener),
            await self._credentials(cluster, user, secret.data_of(have) if have else {}),
        )
        template = user["spec"].get("secretTemplate", {})
        own = names.labels(self._cluster, "security") | {names.USER_LABEL: name}
        want = secret.manifest(
            self._namespace,
            name,
            template.get("labels", {}) | own,
            secret.encoded(data),
            owner=user,
            annotations={
                **template.get("annotations", {}),
                **({OWN_CERTIFICATE: "true"} if security.secret_name(listener) else {}),
            },
        )
        if have is None or _differs(want, have):
            made = await self._kube.apply(_with_applied(want, have))
            self._store.put(made)

    async def _authority_of(self, listener: Mapping[str, Any]) -> bytes:
        """Return the authorities that clients of a listener have to trust, in PEM; empty if they
        are those of the system. Raises `Refused`, `KubeError`."""
        name = security.secret_name(listener)
        if not name:
            own = security.ca_cert(self._cluster, security.CLUSTER)
            found = self._store.get("Secret", self._namespace, own)
            if found is None:
                text = f"QueueCluster {self._cluster!r} has no certificate authority yet."
                raise Refused(Verdict.waiting("ClusterNotSecured", text))
            return secret.data_of(found)["ca.crt"]
        found = await self._kube.get("v1", "Secret", name, self._namespace)
        try:
            if found is None:
                raise BadCertificate("does not exist")
            data = secret.data_of(found)
            return data.get("ca.crt") or certificates.root(data.get("tls.crt", b""))
        except BadCertificate as error:
            text = (
                f"The certificate of listener {listener['name']!r} cannot be used: Secret {name!r} "
                f"{error}. Correct the Secret."
            )
            raise Refused(Verdict.waiting("ListenerCertificateInvalid", text)) from None

    async def _own_secret(self, name: str) -> Manifest | None:
        """Return the Secret of a user if there is one. Raises `Refused` if it is not ours."""
        found = self._store.get("Secret", self._namespace, name)
        found = found or await self._kube.get("v1", "Secret", name, self._namespace)
        if found and found["metadata"].get("labels", {}).get(names.USER_LABEL) != name:
            raise Refused(
                Verdict.refused(
                    "SecretNotOwned",
                    f"Secret {name!r} exists and does not belong to this QueueUser. Rename the "
                    "QueueUser, or delete the Secret.",
                )
            )
        return found

    async def _credentials(
        self, cluster: Manifest, user: Manifest, have: Mapping[str, bytes]
    ) -> model.Credentials:
        kind = model.authentication(user)
        if kind in (model.TLS_EXTERNAL, model.OAUTH):
            return model.Credentials()
        password = have.get("password", b"").decode() or secrets.token_urlsafe(PASSWORD_BYTES)
        if kind == model.SCRAM:
            given = user["spec"]["authentication"].get("password", {}).get("secretKeyRef")
            return model.Credentials(
                password=await self._given_password(given) if given else password
            )
        pair = KeyPair(have.get("user.crt", b""), have.get("user.key", b""))
        signed = self._signed(cluster, user, pair)
        if signed is None and have.get("user.p12"):
            return model.Credentials(pair, have["user.p12"], password)
        pair = signed or pair
        authority = secret.data_of(self._clients_ca()).get("ca.crt", b"")
        store = certificates.store(pair, [authority], password, model.username(user))
        return model.Credentials(pair, store, password)

    async def _given_password(self, reference: Mapping[str, str]) -> str:
        """Return a password of the user's own. Raises `Refused`, `KubeError`."""
        name, key = reference["name"], reference["key"]
        found = await self._kube.get("v1", "Secret", name, self._namespace)
        value = secret.data_of(found).get(key, b"").decode() if found else ""
        if not value:
            what = f"has no key {key!r}" if found else "does not exist"
            raise Refused(
                Verdict.waiting("PasswordNotFound", f"Secret {name!r} {what}. Write the password.")
            )
        return value

    def _clients_ca(self) -> Manifest:
        found = self._store.get(
            "Secret", self._namespace, security.ca(self._cluster, security.CLIENTS)
        )
        if found is None:
            text = f"The clients CA of QueueCluster {self._cluster!r} is not available."
            raise Refused(Verdict.waiting("ClusterNotSecured", text))
        return found

    def _signed(self, cluster: Manifest, user: Manifest, have: KeyPair) -> KeyPair | None:
        """Return a new certificate if the user needs one, else None. Raises `Refused`."""
        now = datetime.datetime.now(datetime.UTC)
        settings = security.settings(cluster, security.CLIENTS)
        try:
            authority = parse_authority(self._clients_ca()).current
            revoked = self._revoked.get(revoked_users.subject(user))
            if revoked is not None:
                now = max(now, revoked_users.first_valid(revoked))
            if (
                certificates.may_stay(have, authority.certificate, now, settings.renewal)
                and not (revoked and revoked.revokes(certificates.begins(have.certificate)))
                and certificates.subject(have.certificate) == f"CN={model.username(user)}"
            ):
                return None
            return certificates.issue(
                authority, model.username(user), now=now, validity_days=settings.validity_days
            )
        except BadCertificate as error:
            text = f"The clients CA of QueueCluster {self._cluster!r} cannot sign: {error}."
            raise Refused(Verdict.waiting("ClusterNotSecured", text)) from None


def _verdict(error: KafkaError | None) -> Verdict:
    if error is None:
        return Verdict.fine("The Secret has credentials that the brokers accept.")
    if error.code == ErrorCode.security_disabled:
        text = (
            "spec.acls has entries, but the QueueCluster does not authorize requests. Set its "
            "spec.authorization.type to simple, or remove spec.acls."
        )
        return Verdict.refused("NotAuthorized", text)
    text = f"The brokers refused the user: {error}."
    if error.retriable:
        return Verdict.waiting("UserRefused", f"{text} The operator tries again.")
    return Verdict.refused("UserRefused", f"{text} Change the spec.")


def _digest(user: Manifest, password: str) -> str:
    """Return a hash that changes with the password; only readers of the Secret see it."""
    return hashlib.sha256(f"{user['metadata']['uid']} {password}".encode()).hexdigest()


def _differs(want: Manifest, have: Manifest) -> bool:
    one, other = want["metadata"], have["metadata"]
    notes = other.get("annotations", {})
    return (
        want["data"] != have.get("data")
        or any(other.get("labels", {}).get(k) != v for k, v in one["labels"].items())
        or any(notes.get(k) != v for k, v in one.get("annotations", {}).items())
    )


def _with_applied(want: Manifest, have: Manifest | None) -> Manifest:
    """Keep the annotation of the password that the brokers have: a new one must be set first."""
    applied = (have or {}).get("metadata", {}).get("annotations", {}).get(APPLIED)
    if applied:
        want["metadata"].setdefault("annotations", {})[APPLIED] = applied
    return want
