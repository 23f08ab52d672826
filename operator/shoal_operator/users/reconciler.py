"""QueueUsers: credentials, permissions and quotas in the brokers, and the Secrets of clients.

The operator owns all access control entries of a principal that a QueueUser names, its quotas, and
its SCRAM credential. It leaves other principals alone, and quotas of a user with a client id.
"""

from __future__ import annotations

import datetime
import hashlib
import secrets
from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog
from shoal.client.errors import KafkaError
from shoal.protocol.errors import ErrorCode

from shoal_operator.brokers.batch_reconciler import (
    BatchReconciler,
    ResourceOutcome,
    find_live_cluster,
    find_owners,
    make_external_verdict,
)
from shoal_operator.cluster.authorities import OWN_CERTIFICATE, parse_authority
from shoal_operator.kube import failures
from shoal_operator.kube.conditions import Verdict
from shoal_operator.kube.kube import KubeError
from shoal_operator.model import certificates, external, listeners, names, secret, security
from shoal_operator.model import users as model
from shoal_operator.model.certificates import BadCertificate, KeyPair
from shoal_operator.model.resources.queue_user import QueueUser
from shoal_operator.users import deleted_users, revoked_users
from shoal_operator.users.deleted_users import Departure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.security.acls import Acl
    from shoal.security.revocations import Revocation

    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import Listener, QueueCluster
    from shoal_operator.model.resources.queue_user import (
        QueueUserSpecAuthenticationPasswordSecretKeyRef,
        QueueUserStatusPatch,
    )

log = structlog.get_logger()
KIND = "QueueUser"
#: Bytes of a generated password before they are encoded.
PASSWORD_BYTES = 24
#: Annotation of a user's Secret: the hash of the password that the brokers have.
APPLIED = f"{names.GROUP}/applied-password"


class UserRefused(Exception):
    """A user cannot have its Secret; `verdict` says why."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


class QueueUserReconciler(BatchReconciler[QueueUser]):
    """The reconciler of all QueueUsers of one cluster."""

    kind, noun, retry_seconds = QueueUser, "user", 5.0
    #: The certificates that the brokers refuse, by subject, as the newest pass has read them.
    _revoked: Mapping[str, Revocation] = MappingProxyType({})

    def get_kafka_name(self, resource: QueueUser) -> str:
        """Return the user's principal."""
        return model.format_principal(resource)

    def needs_deletion(self, resource: QueueUser) -> bool:
        """Return True: credentials and permissions go with the resource."""
        del resource
        return True

    def make_conflict_outcome(
        self, resource: QueueUser, owner: QueueUser
    ) -> ResourceOutcome[QueueUser]:
        """Return the outcome for a QueueUser whose principal an older QueueUser has."""
        verdict = Verdict.make_refused(
            "UserClaimed",
            f"{model.format_principal(resource)} belongs to the older QueueUser "
            f"{owner['metadata']['name']!r}. Delete one of the two.",
        )
        return ResourceOutcome(resource, verdict, {})

    async def delete(self, kafka_names: Sequence[str]) -> Mapping[str, KafkaError]:
        """Delete the credentials, permissions and quotas of principals; return the errors by
        principal."""
        if self._is_external():
            return {}
        errors = await self._remove_access(kafka_names)
        now = datetime.datetime.now(datetime.UTC)
        leaving = [self._make_departure(u, now) for u in self._list_resources()]
        return errors | await self._revoke(
            [departure for departure in leaving if departure.principal in kafka_names]
        )

    async def apply(self, owned: Sequence[QueueUser]) -> list[ResourceOutcome[QueueUser]]:
        """Bring Secrets, credentials, permissions and quotas to the specs. Raises `ClientError`."""
        if self._is_external():
            return [
                ResourceOutcome(user, make_external_verdict(KIND, self._cluster), {})
                for user in owned
            ]
        cluster = find_live_cluster(self._store, self._namespace, self._cluster)
        assert cluster is not None, "the caller has checked it"
        refused: dict[str, Verdict] = {}
        ready: dict[str, QueueUser] = {}
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
                ready[model.format_principal(user)] = user
            except UserRefused as error:
                refused[model.format_principal(user)] = error.verdict
            except Exception as error:
                refused[model.format_principal(user)] = failures.report(KIND, user, error)
        # Permissions do not wait for the Secret: those that were taken away must end.
        errors = await self._change_acls(
            {model.format_principal(u): model.build_acls(u) for u in owned}
        )
        errors |= await self._set_passwords(list(ready.values()), errors)
        errors |= await self._change_quotas(
            {model.format_principal(u): model.get_quotas(u) for u in owned}
        )
        outcomes = []
        for user in owned:
            principal = model.format_principal(user)
            verdict = refused.get(principal) or _decide_verdict(errors.get(principal), cluster)
            fields: QueueUserStatusPatch = {"principal": principal}
            if principal in ready:
                fields["secret"] = user["metadata"]["name"]
                fields["certificateNotAfter"] = self._format_not_after(user)
            outcomes.append(ResourceOutcome(user, verdict, fields))
        return outcomes

    async def _remove_access(self, principals: Sequence[str]) -> dict[str, KafkaError]:
        """Delete what principals have in the brokers, except certificates; return the errors."""
        nothing: dict[str, set[Acl]] = {principal: set() for principal in principals}
        errors = await self._change_acls(nothing, removes=True)
        errors |= await self._change_quotas({principal: {} for principal in principals})
        scram = [p.removeprefix("User:") for p in principals if not p.startswith("User:CN=")]
        existing = await self._brokers.users.list_with_passwords(scram)
        password_errors = await self._brokers.users.delete_passwords(
            [u for u in scram if u in existing]
        )
        return errors | {f"User:{user}": error for user, error in password_errors.items()}

    def _is_external(self) -> bool:
        cluster = find_live_cluster(self._store, self._namespace, self._cluster)
        return cluster is not None and external.is_external(cluster)

    # Certificates of deleted users.

    def _get_client_authorities(self) -> list[bytes]:
        """Return the clients' authorities; none if the cluster has none."""
        name = security.format_ca_cert_secret(self._cluster, security.CLIENTS)
        manifest = self._store.get("Secret", self._namespace, name)
        pem = secret.decode_data(manifest).get("ca.crt", b"") if manifest else b""
        return certificates.split(pem)

    async def _revoke(self, leaving: Sequence[Departure]) -> dict[str, KafkaError]:
        """Revoke the certificates of deleted QueueUsers; return the errors by principal."""
        trusted = self._get_client_authorities()
        cluster = find_live_cluster(self._store, self._namespace, self._cluster)
        assert cluster is not None, "the caller has checked it"
        days = security.get_settings(cluster, security.CLIENTS).validity_days
        revocations = {
            entry.subject: entry
            for departure in leaving
            if trusted and revoked_users.get_subject(departure.user)
            for entry in [
                revoked_users.make_revocation(
                    departure.user,
                    now=departure.deleted_at,
                    validity=days * certificates.DAY,
                    trusted=trusted,
                    expires=departure.expires,
                )
            ]
        }
        if not revocations:
            return {}
        have = await self._brokers.users.list_revocations()
        room = max(0, revoked_users.ENTRIES_MAX - len(have.keys() - revocations.keys()))
        fits = dict(sorted(revocations.items())[:room])
        old = [have[subject] for subject in fits if subject in have]
        try:
            await self._brokers.users.change_revocations(
                add=fits.values(),
                remove=[revocation for revocation in old if revocation not in fits.values()],
            )
        except KafkaError as error:
            if error.code != ErrorCode.invalid_config:
                raise
            log.warning("the brokers' release does not revoke certificates", error=str(error))
            return {}
        full = KafkaError(ErrorCode.policy_violation, revoked_users.FULL)
        return {f"User:{subject}": full for subject in revocations.keys() - fits.keys()}

    async def _tidy_revocations(self, owned: Sequence[QueueUser]) -> Mapping[str, Revocation]:
        """Remove the entries that are not needed any more; return the others by subject."""
        have = await self._brokers.users.list_revocations()
        trusted = self._get_client_authorities()
        if not have or not trusted:
            return have
        now = datetime.datetime.now(datetime.UTC)
        removable = revoked_users.list_removable(have, owned, now=now, trusted=trusted)
        await self._brokers.users.change_revocations(add=(), remove=removable)
        return {
            subject: revocation
            for subject, revocation in have.items()
            if revocation not in removable
        }

    # Users that were deleted while the cluster was away.

    def list_names(self) -> list[str]:
        """Return the names of all QueueUsers, and that of the ConfigMap with deleted ones."""
        config_map = self._store.get("ConfigMap", self._namespace, self._departures_name) or {}
        return [*super().list_names(), *([self._departures_name] if config_map.get("data") else [])]

    @property
    def _departures_name(self) -> str:
        return deleted_users.format_name(self._cluster)

    def _list_departures(self) -> list[Departure]:
        config_map = self._store.get("ConfigMap", self._namespace, self._departures_name)
        return deleted_users.parse_departures(config_map, self._cluster)

    def _make_departure(self, user: QueueUser, now: datetime.datetime) -> Departure:
        pem = self._read_certificate(user)
        return Departure(user, now, certificates.get_expiry(pem) if pem else None)

    async def remember(self, deleted: Sequence[QueueUser]) -> None:
        """Note whose access ends when the cluster returns. Raises `KubeError`.

        The authority of clients stays with the volumes; without it, no user ever had access.
        """
        kept = find_owners(self._list_resources(), self.get_kafka_name)
        had_access = [
            user
            for user in deleted
            if names.FINALIZER in user["metadata"].get("finalizers", [])
            and model.format_principal(user) not in kept
        ]
        authority = security.format_ca_secret(self._cluster, security.CLIENTS)
        if not had_access or self._store.get("Secret", self._namespace, authority) is None:
            return
        config_map = self._store.get("ConfigMap", self._namespace, self._departures_name) or {}
        now = datetime.datetime.now(datetime.UTC)
        want = deleted_users.build_manifest(
            self._namespace,
            self._cluster,
            [self._make_departure(user, now) for user in had_access],
            config_map.get("data") or {},
        )
        try:
            self._store.put(await self._kube.apply(want))
        except KubeError as error:
            # With the namespace, everything of the cluster goes.
            if not error.terminating:
                raise

    async def _remove_departed(self, owned: Sequence[QueueUser]) -> None:
        """End the access of users that were deleted while the cluster was away.

        A QueueUser of the same name that was made since then keeps its permissions.
        """
        departed = self._list_departures()
        if not departed:
            return
        present = {model.format_principal(user) for user in owned}
        present |= {
            model.format_principal(user)
            for user in self._list_resources()
            if not user["metadata"].get("deletionTimestamp")
        }
        principals = sorted({departure.principal for departure in departed} - present)
        errors = await self._remove_access(principals) | await self._revoke(departed)
        for principal, error in errors.items():
            log.warning("a deleted user keeps its access", principal=principal, error=str(error))
        removed = {
            departure.user["metadata"]["uid"]: None
            for departure in departed
            if departure.principal not in errors
        }
        config_map = self._store.get("ConfigMap", self._namespace, self._departures_name)
        assert config_map is not None, "it has the users"
        changed = await self._kube.merge(
            {**config_map, "apiVersion": "v1", "kind": "ConfigMap"}, {"data": removed}
        )
        if changed is not None:
            self._store.put(changed)

    # Permissions.

    async def _change_acls(
        self, wanted_acls: Mapping[str, set[Acl]], *, removes: bool = False
    ) -> dict[str, KafkaError]:
        """Give principals exactly these entries; return the errors by principal.

        With `removes`, an answer of a broker that does not authorize requests yet is an error also
        for principals without entries.
        """
        try:
            have = await self._brokers.users.list_acls()
        except KafkaError as error:
            if error.code != ErrorCode.security_disabled:
                raise
            # Without an authorizer, every client may do everything. A broker that has not restarted
            # yet cannot remove what the authorizer of the others enforces.
            cluster = find_live_cluster(self._store, self._namespace, self._cluster)
            keeps = removes and cluster is not None and security.is_authorized(cluster)
            return {name: error for name, entries in wanted_acls.items() if entries or keeps}
        mine = {acl for acl in have if acl.principal in wanted_acls}
        entries = {acl for of_one in wanted_acls.values() for acl in of_one}
        return await self._brokers.users.change_acls(add=entries - mine, remove=mine - entries)

    async def _change_quotas(
        self, wanted_quotas: Mapping[str, Mapping[str, float]]
    ) -> dict[str, KafkaError]:
        """Give principals exactly these quotas; return the errors by principal."""
        have = await self._brokers.users.describe_quotas()
        changes: dict[str, Mapping[str, float | None]] = {}
        for principal, quotas in wanted_quotas.items():
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
        self, users: Sequence[QueueUser], failed: Mapping[str, KafkaError]
    ) -> dict[str, KafkaError]:
        """Store the passwords that the brokers do not have; return the errors by principal."""
        scram = [
            u
            for u in users
            if model.get_authentication(u) == model.SCRAM
            and model.format_principal(u) not in failed
        ]
        existing = await self._brokers.users.list_with_passwords(
            [model.get_username(u) for u in scram]
        )
        stale = {}
        for user in scram:
            own = self._get_secret(user)
            password = secret.decode_data(own)["password"].decode()
            applied = own["metadata"].get("annotations", {}).get(APPLIED)
            if model.get_username(user) not in existing or applied != _compute_digest(
                user, password
            ):
                stale[model.get_username(user)] = (user, password)
        errors = await self._brokers.users.set_passwords({u: p for u, (_, p) in stale.items()})
        for name, (user, password) in stale.items():
            if name not in errors:
                patch = {"metadata": {"annotations": {APPLIED: _compute_digest(user, password)}}}
                changed = await self._kube.merge(self._get_secret(user), patch)
                if changed is not None:
                    self._store.put(changed)
        return {f"User:{name}": error for name, error in errors.items()}

    # Secrets.

    def _get_secret(self, user: QueueUser) -> Manifest:
        manifest = self._store.get("Secret", self._namespace, user["metadata"]["name"])
        assert manifest is not None, "it was written before"
        return {**manifest, "apiVersion": "v1", "kind": "Secret"}

    def _read_certificate(self, user: QueueUser) -> bytes:
        """Return the certificate in a user's Secret; empty without one that can be read."""
        manifest = self._store.get("Secret", self._namespace, user["metadata"]["name"])
        pem = secret.decode_data(manifest).get("user.crt", b"") if manifest else b""
        try:
            certificates.load(pem)
        except BadCertificate:
            return b""
        return pem

    def _format_not_after(self, user: QueueUser) -> str:
        pem = self._read_certificate(user)
        return certificates.format_not_after(pem) if pem else ""

    async def _write_secret(self, cluster: QueueCluster, user: QueueUser) -> None:
        """Write the Secret of a user. Raises `UserRefused`, `KubeError`."""
        name = user["metadata"]["name"]
        listener = model.find_listener(cluster, user)
        if listener is None:
            mechanism = model.LISTENER_OF[model.get_authentication(user)]
            raise UserRefused(
                Verdict.make_waiting(
                    "NoListenerForUser",
                    f"QueueCluster {self._cluster!r} has no listener with authentication of the "
                    f"type {mechanism}. Add one, or change spec.authentication.",
                )
            )
        have = await self._find_own_secret(name)
        data = model.build_secret_data(
            user,
            listeners.get_bootstrap_servers(cluster, listener),
            await self._read_authority(listener),
            await self._make_credentials(cluster, user, secret.decode_data(have) if have else {}),
        )
        template = user["spec"].get("secretTemplate", {})
        own = names.build_labels(self._cluster, "security") | {names.USER_LABEL: name}
        want = secret.build_manifest(
            self._namespace,
            name,
            template.get("labels", {}) | own,
            secret.encode_data(data),
            owner=user,
            annotations={
                **template.get("annotations", {}),
                **({OWN_CERTIFICATE: "true"} if security.get_secret_name(listener) else {}),
            },
        )
        if have is None or _has_changed(want, have):
            applied = await self._kube.apply(_with_applied(want, have))
            self._store.put(applied)

    async def _read_authority(self, listener: Listener) -> bytes:
        """Return the authorities that clients of a listener have to trust, in PEM; empty if they
        are those of the system. Raises `UserRefused`, `KubeError`."""
        name = security.get_secret_name(listener)
        if not name:
            own = security.format_ca_cert_secret(self._cluster, security.CLUSTER)
            manifest = self._store.get("Secret", self._namespace, own)
            if manifest is None:
                text = f"QueueCluster {self._cluster!r} has no certificate authority yet."
                raise UserRefused(Verdict.make_waiting("ClusterNotSecured", text))
            return secret.decode_data(manifest)["ca.crt"]
        manifest = await self._kube.get("v1", "Secret", name, self._namespace)
        try:
            if manifest is None:
                raise BadCertificate("does not exist")
            data = secret.decode_data(manifest)
            return data.get("ca.crt") or certificates.find_root(data.get("tls.crt", b""))
        except BadCertificate as error:
            text = (
                f"The certificate of listener {listener['name']!r} cannot be used: Secret {name!r} "
                f"{error}. Correct the Secret."
            )
            raise UserRefused(Verdict.make_waiting("ListenerCertificateInvalid", text)) from None

    async def _find_own_secret(self, name: str) -> Manifest | None:
        """Return the Secret of a user if there is one. Raises `UserRefused` if it is not ours."""
        manifest = self._store.get("Secret", self._namespace, name)
        manifest = manifest or await self._kube.get("v1", "Secret", name, self._namespace)
        if manifest and manifest["metadata"].get("labels", {}).get(names.USER_LABEL) != name:
            raise UserRefused(
                Verdict.make_refused(
                    "SecretNotOwned",
                    f"Secret {name!r} exists and does not belong to this QueueUser. Rename the "
                    "QueueUser, or delete the Secret.",
                )
            )
        return manifest

    async def _make_credentials(
        self, cluster: QueueCluster, user: QueueUser, have: Mapping[str, bytes]
    ) -> model.Credentials:
        kind = model.get_authentication(user)
        if kind in (model.TLS_EXTERNAL, model.OAUTH):
            return model.Credentials()
        password = have.get("password", b"").decode() or secrets.token_urlsafe(PASSWORD_BYTES)
        if kind == model.SCRAM:
            reference = user["spec"]["authentication"].get("password", {}).get("secretKeyRef")
            return model.Credentials(
                password=await self._read_password(reference) if reference else password
            )
        pair = KeyPair(have.get("user.crt", b""), have.get("user.key", b""))
        signed = self._sign(cluster, user, pair)
        if signed is None and have.get("user.p12"):
            return model.Credentials(pair, have["user.p12"], password)
        pair = signed or pair
        authority = secret.decode_data(self._get_clients_ca()).get("ca.crt", b"")
        store = certificates.build_pkcs12_store(
            pair, [authority], password, model.get_username(user)
        )
        return model.Credentials(pair, store, password)

    async def _read_password(
        self, reference: QueueUserSpecAuthenticationPasswordSecretKeyRef
    ) -> str:
        """Return a password of the user's own. Raises `UserRefused`, `KubeError`."""
        name, key = reference["name"], reference["key"]
        manifest = await self._kube.get("v1", "Secret", name, self._namespace)
        value = secret.decode_data(manifest).get(key, b"").decode() if manifest else ""
        if not value:
            problem = f"has no key {key!r}" if manifest else "does not exist"
            raise UserRefused(
                Verdict.make_waiting(
                    "PasswordNotFound", f"Secret {name!r} {problem}. Write the password."
                )
            )
        return value

    def _get_clients_ca(self) -> Manifest:
        manifest = self._store.get(
            "Secret", self._namespace, security.format_ca_secret(self._cluster, security.CLIENTS)
        )
        if manifest is None:
            text = f"The clients CA of QueueCluster {self._cluster!r} is not available."
            raise UserRefused(Verdict.make_waiting("ClusterNotSecured", text))
        return manifest

    def _sign(self, cluster: QueueCluster, user: QueueUser, have: KeyPair) -> KeyPair | None:
        """Return a new certificate if the user needs one, else None. Raises `UserRefused`."""
        now = datetime.datetime.now(datetime.UTC)
        settings = security.get_settings(cluster, security.CLIENTS)
        try:
            authority = parse_authority(self._get_clients_ca()).current
            revoked = self._revoked.get(revoked_users.get_subject(user))
            if revoked is not None:
                now = max(now, revoked_users.get_first_valid_time(revoked))
            if (
                certificates.may_stay(have, authority.certificate, now, settings.renewal)
                and not (
                    revoked
                    and revoked.is_revoked(certificates.get_validity_start(have.certificate))
                )
                and certificates.format_subject(have.certificate)
                == f"CN={model.get_username(user)}"
            ):
                return None
            return certificates.issue(
                authority, model.get_username(user), now=now, validity_days=settings.validity_days
            )
        except BadCertificate as error:
            text = f"The clients CA of QueueCluster {self._cluster!r} cannot sign: {error}."
            raise UserRefused(Verdict.make_waiting("ClusterNotSecured", text)) from None


def _decide_verdict(error: KafkaError | None, cluster: QueueCluster) -> Verdict:
    if error is None:
        return Verdict.make_reconciled("The Secret has credentials that the brokers accept.")
    if error.code == ErrorCode.security_disabled and security.is_authorized(cluster):
        # A roll does not end with an event about its users, so the next pass comes by itself.
        text = (
            "The QueueCluster authorizes requests once its brokers have restarted; not all of them "
            "have. The operator tries again."
        )
        return Verdict.make_waiting("ClusterNotSecured", text)
    if error.code == ErrorCode.security_disabled:
        text = (
            "spec.acls has entries, but the QueueCluster does not authorize requests. Set its "
            "spec.authorization.type to simple, or remove spec.acls."
        )
        return Verdict.make_refused("NotAuthorized", text)
    text = f"The brokers refused the user: {error}."
    if error.retriable:
        return Verdict.make_waiting("UserRefused", f"{text} The operator tries again.")
    return Verdict.make_refused("UserRefused", f"{text} Change the spec.")


def _compute_digest(user: QueueUser, password: str) -> str:
    """Return a hash that changes with the password; only readers of the Secret see it."""
    return hashlib.sha256(f"{user['metadata']['uid']} {password}".encode()).hexdigest()


def _has_changed(want: Manifest, have: Manifest) -> bool:
    want_meta, have_meta = want["metadata"], have["metadata"]
    notes = have_meta.get("annotations", {})
    return (
        want["data"] != have.get("data")
        or any(have_meta.get("labels", {}).get(k) != v for k, v in want_meta["labels"].items())
        or any(notes.get(k) != v for k, v in want_meta.get("annotations", {}).items())
    )


def _with_applied(want: Manifest, have: Manifest | None) -> Manifest:
    """Keep the annotation of the password that the brokers have: a new one must be set first."""
    applied = (have or {}).get("metadata", {}).get("annotations", {}).get(APPLIED)
    if applied:
        want["metadata"].setdefault("annotations", {})[APPLIED] = applied
    return want
