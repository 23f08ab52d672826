"""The certificate authorities of one QueueCluster, and the certificates that they sign.

Each authority is one Secret, `<cluster>-cluster-ca` or `<cluster>-clients-ca`, which only the
operator reads. A second Secret, with the suffix `-cert`, has the certificates that clients trust.
The Secrets of an authority have no owner: deleting a QueueCluster keeps them, like its volumes.

The operator makes an authority once. If its Secret disappears later, nothing is made in its place,
because no client would trust it.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator import ca_renewal, certificates
from shoal_operator.ca_renewal import Action, Authority, Loaded
from shoal_operator.certificates import BadCertificate, KeyPair
from shoal_operator.cluster.cert_manager import CertManager, Source
from shoal_operator.conditions import is_ready
from shoal_operator.diagnostics import Diagnosis
from shoal_operator.drift import has_drifted
from shoal_operator.model import cert_manager, names, secret, security
from shoal_operator.model.security import CLIENTS, CLUSTER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.kube import Kube
    from shoal_operator.model.names import Manifest
    from shoal_operator.store import Store

#: Annotations of an authority's Secret: when its phase began, and the request for a renewal that
#: was handled last.
BEGAN, HANDLED = f"{names.GROUP}/phase-began", f"{names.GROUP}/renewed"
#: Annotation of a user's Secret whose `ca.crt` belongs to a listener with its own certificate.
OWN_CERTIFICATE = f"{names.GROUP}/own-certificate"
#: Annotations of a QueueCluster: a new value asks for new authorities, and the fingerprint of an
#: authority that was lost permits to make a new one.
RENEW, REPLACE = f"{names.GROUP}/renew", f"{names.GROUP}/replace-lost-ca"


class Issued(NamedTuple):
    """What the brokers and the operator need. `status` describes the authorities."""

    cluster_ca: bytes
    operator: KeyPair
    status: tuple[Manifest, ...]
    #: What a renewal waits for; None if none is under way.
    renewal: Diagnosis | None = None
    #: Why an issuer has no authority, while the previous one is in use.
    problem: Diagnosis | None = None


class AuthorityLost(Exception):
    """An authority cannot be used; `diagnosis` has the reason and the remedy. `waits` is whether an
    issuer may still sign one."""

    def __init__(self, reason: str, message: str, *, waits: bool = False) -> None:
        super().__init__(message)
        self.diagnosis, self.waits = Diagnosis(reason, message), waits


class Authorities:
    """Writes the Secrets of one QueueCluster."""

    def __init__(self, kube: Kube, store: Store, namespace: str, name: str) -> None:
        self._kube, self._store = kube, store
        self._namespace, self._name = namespace, name
        self._cert_manager = CertManager(kube, store, namespace, name)

    def is_renewing(self) -> bool:
        """Return whether a renewal is under way, which needs what the brokers report."""
        secrets = self._of_authorities()
        found = [self._store.get("Secret", self._namespace, name) for name in secrets]
        return any(one and one["metadata"].get("annotations", {}).get(BEGAN) for one in found)

    async def reconcile(
        self,
        cluster: Manifest,
        *,
        dns: Sequence[str],
        ips: Sequence[str],
        loaded: Mapping[str, Mapping[int, Loaded] | None],
        now: datetime.datetime,
    ) -> Issued:
        """Bring the Secrets to the spec. Raises `AuthorityLost`, `KubeError`.

        `dns` and `ips` are the addresses of the brokers. `loaded` is what the brokers report, by
        kind of authority.
        """
        reasons, problem = [], None
        found: dict[str, Authority] = {}
        for kind in security.KINDS:
            source = await self._source(cluster, kind, now)
            have = await self._authority(cluster, kind, source, now)
            if isinstance(source, Diagnosis):
                problem = Diagnosis(source.reason, f"The {kind} CA: {source.message}")
            leaf = self._leaf_fingerprint() if kind == CLUSTER else ""
            have, why = await self._renew(cluster, kind, have, source, loaded.get(kind), leaf, now)
            await self._apply(cluster, security.ca_cert(self._name, kind), {"ca.crt": have.shown})
            found[kind] = have
            reasons += [f"The {kind} CA: {why}."] if why else []
        operator = await self._leaves(cluster, found, dns, ips, now)
        status = tuple(self._status(kind, have) for kind, have in found.items())
        renewal = Diagnosis("RenewingCertificates", " ".join(reasons)) if reasons else None
        return Issued(found[CLUSTER].trusted, operator, status, renewal, problem)

    # Authorities.

    async def _source(
        self, cluster: Manifest, kind: str, now: datetime.datetime
    ) -> Source | Diagnosis | None:
        """Return the newest authority that an issuer has signed, why there is none, or None if no
        issuer signs it."""
        ref = cert_manager.issuer(cluster, kind)
        return await self._cert_manager.source(cluster, kind, ref, now) if ref else None

    async def _authority(
        self,
        cluster: Manifest,
        kind: str,
        source: Source | Diagnosis | None,
        now: datetime.datetime,
    ) -> Authority:
        name = security.ca(self._name, kind)
        found = await self._read(name)
        if found is None:
            if not security.settings(cluster, kind).generate:
                raise AuthorityLost(
                    "CertificateAuthorityNotFound",
                    f"Secret {name!r} does not exist, and spec.{security.FIELDS[kind]}.generate is "
                    "false. Create it with your authority's ca.crt and ca.key.",
                )
            return await self._make(cluster, kind, source, now)
        try:
            have = parse_authority(found)
            certificates.check_ca(have.current, now)
            if have.next is not None:
                certificates.check_ca(have.next, now)
        except BadCertificate as error:
            raise AuthorityLost(
                "CertificateAuthorityInvalid",
                f"The authority in Secret {name!r} cannot be used: {error}. Restore the Secret "
                "from a backup, or write a valid authority into ca.crt and ca.key.",
            ) from None
        return have

    async def _make(
        self,
        cluster: Manifest,
        kind: str,
        source: Source | Diagnosis | None,
        now: datetime.datetime,
    ) -> Authority:
        known = security.known_fingerprint(cluster, kind)
        permitted = cluster["metadata"].get("annotations", {}).get(REPLACE)
        signed = source if isinstance(source, Source) else None
        # The Secret of cert-manager may have the lost one.
        newest = certificates.fingerprint(signed.pair.certificate) if signed else ""
        if known and known not in (permitted, newest):
            raise AuthorityLost(
                "CertificateAuthorityLost",
                f"Secret {security.ca(self._name, kind)!r} has disappeared. Restore it from a "
                "backup. If it is lost, every client has to get a new authority: permit that by "
                f"the annotation {REPLACE}={known}.",
            )
        if isinstance(source, Diagnosis):
            text = f"The {kind} CA: {source.message}"
            raise AuthorityLost(source.reason, text, waits=True)
        if source is None:
            made = Authority(self._new_pair(cluster, kind, now))
        else:
            made = Authority(source.pair, chain=source.chain)
        await self._write(cluster, kind, made)
        return made

    def _new_pair(self, cluster: Manifest, kind: str, now: datetime.datetime) -> KeyPair:
        days = security.settings(cluster, kind).validity_days
        return certificates.make_ca(f"{self._name}-{kind}-ca", now=now, validity_days=days)

    async def _renew(
        self,
        cluster: Manifest,
        kind: str,
        have: Authority,
        source: Source | Diagnosis | None,
        loaded: Mapping[int, Loaded] | None,
        leaf: str,
        now: datetime.datetime,
    ) -> tuple[Authority, str]:
        """Take the next step of a renewal; return what it waits for too."""
        settings = security.settings(cluster, kind)
        if not settings.generate:
            return have, ""
        signed = source if isinstance(source, Source) else None
        # An issuer has its own time, and its own command that asks for a renewal.
        requested, successor = "", None
        if source is None:
            requested = cluster["metadata"].get("annotations", {}).get(RENEW, "")
        else:
            successor = certificates.fingerprint(signed.pair.certificate) if signed else ""
        step = ca_renewal.next_step(
            have,
            now=now,
            renewal=settings.renewal,
            overlap=settings.overlap,
            requested=requested,
            loaded=loaded,
            leaf=leaf,
            unfetched=self._late_users(kind, have, now - settings.overlap) if have.phase else "",
            successor=successor,
        )
        if step.action is Action.KEEP:
            return have, step.why
        made = None
        if step.action is Action.TRUST_NEXT:
            made = signed.pair if signed else self._new_pair(cluster, kind, now)
        chain = signed.chain if signed else b"" if source is None else have.chain
        changed = ca_renewal.after(
            have, step.action, now=now, requested=requested, made=made, chain=chain
        )
        await self._write(cluster, kind, changed)
        text = f"The {kind} CA: {step.action.value}."
        await self._kube.event(cluster, "CertificateAuthorityRenewal", text)
        return changed, "a phase has begun" if changed.phase else ""

    async def _write(self, cluster: Manifest, kind: str, have: Authority) -> None:
        nothing = KeyPair(b"", b"")
        following = have.next or nothing
        data = {
            "ca.crt": have.current.certificate,
            "ca.key": have.current.key,
            "next.crt": following.certificate,
            "next.key": following.key,
            "old.crt": have.old,
        }
        if have.chain:
            data["chain.crt"] = have.chain
        annotations = {BEGAN: have.began.isoformat() if have.began else "", HANDLED: have.handled}
        await self._apply(cluster, security.ca(self._name, kind), data, annotations)

    @staticmethod
    def _status(kind: str, have: Authority) -> Manifest:
        return {
            "name": f"{kind}-ca",
            "fingerprint": certificates.fingerprint(have.current.certificate),
            "notAfter": certificates.not_after(have.current.certificate),
            "phase": have.phase,
        }

    # Certificates.

    def _late_users(self, kind: str, have: Authority, since: datetime.datetime) -> str:
        """Return which QueueUsers' Secrets a renewal waits for; empty if there are none.

        A QueueUser that is not ready has no part in it: its condition says what it lacks, and it
        must not keep the others from new certificates.

        Secrets need all authorities of the brokers. Before the previous clients' authority is
        dropped, they need certificates of the current one, which clients have had time to fetch:
        since `since`, because the kubelet updates mounted Secrets late.
        """
        late = []
        for found in self._store.all("Secret"):
            meta = found["metadata"]
            user = meta.get("labels", {}).get(names.USER_LABEL)
            of_cluster = meta.get("labels", {}).get(names.CLUSTER_LABEL) == self._name
            if meta["namespace"] != self._namespace or not user or not of_cluster:
                continue
            if not is_ready(self._store.get("QueueUser", self._namespace, user) or {}):
                continue
            data = secret.data_of(found)
            if kind == CLUSTER:
                # Clients of a listener with its own certificate do not trust the cluster's CA.
                is_own = OWN_CERTIFICATE in meta.get("annotations", {})
                is_late = not is_own and data.get("ca.crt") != have.shown
            elif have.old and (pem := data.get("user.crt")):
                is_late = (
                    not certificates.is_signed_by(pem, have.current.certificate)
                    or certificates.issued(pem) > since
                )
            else:
                is_late = False
            late += [user] if is_late else []
        if not late:
            return ""
        others = f" and {len(late) - 3} more" if len(late) > 3 else ""
        return f"QueueUsers {', '.join(sorted(late)[:3])}{others} get new certificates"

    def _leaf_fingerprint(self) -> str:
        """Return the fingerprint of the certificate that brokers are to show; empty without one."""
        found = self._store.get("Secret", self._namespace, security.broker_tls(self._name))
        pem = secret.data_of(found).get("broker.crt", b"") if found else b""
        try:
            return certificates.fingerprint(pem) if pem else ""
        except BadCertificate:
            return "unreadable"  # No broker shows it, and `_leaves` writes another one.

    async def _leaves(
        self,
        cluster: Manifest,
        found: Mapping[str, Authority],
        dns: Sequence[str],
        ips: Sequence[str],
        now: datetime.datetime,
    ) -> KeyPair:
        """Write the certificates of the brokers and the operator; return the operator's."""
        authority = found[CLUSTER]
        renewal = security.settings(cluster, CLUSTER).renewal
        days = security.settings(cluster, CLUSTER).validity_days

        async def leaf(name: str, crt: str, key: str, **wanted: Any) -> KeyPair:
            have = secret.data_of(await self._read(name) or {})
            pair = KeyPair(have.get(crt, b""), have.get(key, b""))
            names_wanted = set(wanted.get("dns", ())), set(wanted.get("ips", ()))
            if _is_good(pair, authority.current, names_wanted, now, renewal):
                return pair
            organization = certificates.ORGANIZATION
            return certificates.issue(
                authority.current,
                now=now,
                validity_days=days,
                organization=organization,
                **wanted,
            )

        broker = await leaf(
            security.broker_tls(self._name),
            "broker.crt",
            "broker.key",
            common_name=security.broker_name(self._name),
            dns=dns,
            ips=ips,
            server=True,
        )
        operator = await leaf(
            security.operator_tls(self._name),
            "tls.crt",
            "tls.key",
            common_name=security.OPERATOR,
        )
        data = {
            # Brokers read the key and the certificate from one file, so that they always match.
            # Clients may trust only the root of an authority that an issuer has signed.
            "broker.pem": broker.key + broker.certificate + _intermediates(authority),
            "broker.crt": broker.certificate,
            "broker.key": broker.key,
            "cluster-ca.crt": found[CLUSTER].trusted,
            "clients-ca.crt": found[CLIENTS].trusted,
        }
        await self._apply(cluster, security.broker_tls(self._name), data, owned=True)
        data = {
            "tls.crt": operator.certificate,
            "tls.key": operator.key,
            "ca.crt": found[CLUSTER].trusted,
        }
        await self._apply(cluster, security.operator_tls(self._name), data, owned=True)
        return operator

    # Secrets.

    def _of_authorities(self) -> list[str]:
        return [security.ca(self._name, kind) for kind in security.KINDS]

    async def _read(self, name: str) -> Manifest | None:
        """Return a Secret; those of users have not the labels of the watched ones."""
        found = self._store.get("Secret", self._namespace, name)
        return found or await self._kube.get("v1", "Secret", name, self._namespace)

    async def _apply(
        self,
        cluster: Manifest,
        name: str,
        data: Mapping[str, bytes],
        annotations: Mapping[str, str] | None = None,
        *,
        owned: bool = False,
    ) -> None:
        want = secret.manifest(
            self._namespace,
            name,
            names.labels(self._name, "security"),
            secret.encoded(data),
            owner=cluster if owned else None,
            annotations=annotations,
        )
        have = self._store.get("Secret", self._namespace, name)
        if have is None or has_drifted(want, have) or have.get("data") != want["data"]:
            # The Secret of an authority may come from the user, or from a backup.
            self._store.put(await self._kube.apply(want, adopt=name in self._of_authorities()))


def parse_authority(found: Manifest) -> Authority:
    """Return the authority in a Secret. Raises `BadCertificate`."""
    data, notes = secret.data_of(found), found["metadata"].get("annotations", {})
    for key in ("ca.crt", "ca.key"):
        if not data.get(key):
            raise BadCertificate(f"it has no {key}")
    following = KeyPair(data.get("next.crt", b""), data.get("next.key", b""))
    began = notes.get(BEGAN)
    return Authority(
        KeyPair(data["ca.crt"], data["ca.key"]),
        following if following.certificate else None,
        data.get("old.crt", b""),
        datetime.datetime.fromisoformat(began) if began else None,
        notes.get(HANDLED, ""),
        data.get("chain.crt", b""),
    )


def _intermediates(authority: Authority) -> bytes:
    """Return what is between a certificate and the root, if the authority is not the root."""
    return certificates.without_roots(authority.current.certificate + authority.chain)


def _is_good(
    pair: KeyPair,
    authority: KeyPair,
    names_wanted: tuple[set[str], set[str]],
    now: datetime.datetime,
    renewal: datetime.timedelta,
) -> bool:
    """Return whether a certificate may stay in use."""
    may_stay = certificates.may_stay(pair, authority.certificate, now, renewal)
    return may_stay and certificates.names_of(pair.certificate) == names_wanted
