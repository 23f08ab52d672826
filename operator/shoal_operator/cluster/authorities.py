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

from shoal_operator.brokers.diagnostics import Diagnosis
from shoal_operator.cluster.cert_manager import CertManager, SignedAuthority
from shoal_operator.kube.conditions import is_ready
from shoal_operator.kube.drift import has_drifted
from shoal_operator.model import ca_renewal, cert_manager, certificates, names, secret, security
from shoal_operator.model.ca_renewal import CertificateAuthority, LoadedCertificates, RenewalAction
from shoal_operator.model.certificates import BadCertificate, KeyPair
from shoal_operator.model.security import CLIENTS, CLUSTER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.kube.kube import KubeClient
    from shoal_operator.kube.store import Store
    from shoal_operator.model.names import Manifest
    from shoal_operator.model.queue_cluster import CertificateStatus, QueueCluster

#: Annotations of an authority's Secret: when its phase began, and the request for a renewal that
#: was handled last.
BEGAN, HANDLED = f"{names.GROUP}/phase-began", f"{names.GROUP}/renewed"
#: Annotation of a user's Secret whose `ca.crt` belongs to a listener with its own certificate.
OWN_CERTIFICATE = f"{names.GROUP}/own-certificate"
#: Annotations of a QueueCluster: a new value asks for new authorities, and the fingerprint of an
#: authority that was lost permits to make a new one.
RENEW, REPLACE = f"{names.GROUP}/renew", f"{names.GROUP}/replace-lost-ca"


class IssuedCertificates(NamedTuple):
    """What the brokers and the operator need. `status` describes the authorities."""

    cluster_ca: bytes
    operator: KeyPair
    status: tuple[CertificateStatus, ...]
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


class AuthorityReconciler:
    """Writes the Secrets of one QueueCluster."""

    def __init__(self, kube: KubeClient, store: Store, namespace: str, name: str) -> None:
        self._kube, self._store = kube, store
        self._namespace, self._name = namespace, name
        self._cert_manager = CertManager(kube, store, namespace, name)

    def is_renewing(self) -> bool:
        """Return whether a renewal is under way, which needs what the brokers report."""
        secrets = self._list_secret_names()
        manifests = [self._store.get("Secret", self._namespace, name) for name in secrets]
        return any(
            manifest and manifest["metadata"].get("annotations", {}).get(BEGAN)
            for manifest in manifests
        )

    async def reconcile(
        self,
        cluster: QueueCluster,
        *,
        dns: Sequence[str],
        ips: Sequence[str],
        loaded: Mapping[str, Mapping[int, LoadedCertificates] | None],
        now: datetime.datetime,
    ) -> IssuedCertificates:
        """Bring the Secrets to the spec. Raises `AuthorityLost`, `KubeError`.

        `dns` and `ips` are the addresses of the brokers. `loaded` is what the brokers report, by
        kind of authority.
        """
        reasons, problem = [], None
        authorities: dict[str, CertificateAuthority] = {}
        for kind in security.KINDS:
            source = await self._find_signed_authority(cluster, kind, now)
            have = await self._load_authority(cluster, kind, source, now)
            if isinstance(source, Diagnosis):
                problem = Diagnosis(source.reason, f"The {kind} CA: {source.message}")
            leaf = self._read_leaf_fingerprint() if kind == CLUSTER else ""
            have, why = await self._renew(cluster, kind, have, source, loaded.get(kind), leaf, now)
            await self._apply(
                cluster,
                security.format_ca_cert_secret(self._name, kind),
                {"ca.crt": have.client_bundle},
            )
            authorities[kind] = have
            reasons += [f"The {kind} CA: {why}."] if why else []
        operator = await self._issue_leaves(cluster, authorities, dns, ips, now)
        status = tuple(self._build_status(kind, have) for kind, have in authorities.items())
        renewal = Diagnosis("RenewingCertificates", " ".join(reasons)) if reasons else None
        return IssuedCertificates(
            authorities[CLUSTER].trust_bundle, operator, status, renewal, problem
        )

    # Authorities.

    async def _find_signed_authority(
        self, cluster: QueueCluster, kind: str, now: datetime.datetime
    ) -> SignedAuthority | Diagnosis | None:
        """Return the newest authority that an issuer has signed, why there is none, or None if no
        issuer signs it."""
        ref = cert_manager.get_issuer(cluster, kind)
        return (
            await self._cert_manager.find_signed_authority(cluster, kind, ref, now) if ref else None
        )

    async def _load_authority(
        self,
        cluster: QueueCluster,
        kind: str,
        source: SignedAuthority | Diagnosis | None,
        now: datetime.datetime,
    ) -> CertificateAuthority:
        name = security.format_ca_secret(self._name, kind)
        manifest = await self._read(name)
        if manifest is None:
            if not security.get_settings(cluster, kind).generate:
                raise AuthorityLost(
                    "CertificateAuthorityNotFound",
                    f"Secret {name!r} does not exist, and spec.{security.FIELDS[kind]}.generate is "
                    "false. Create it with your authority's ca.crt and ca.key.",
                )
            return await self._make_authority(cluster, kind, source, now)
        try:
            have = parse_authority(manifest)
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

    async def _make_authority(
        self,
        cluster: QueueCluster,
        kind: str,
        source: SignedAuthority | Diagnosis | None,
        now: datetime.datetime,
    ) -> CertificateAuthority:
        known_fingerprint = security.get_known_fingerprint(cluster, kind)
        permitted = cluster["metadata"].get("annotations", {}).get(REPLACE)
        signed = source if isinstance(source, SignedAuthority) else None
        # The Secret of cert-manager may have the lost one.
        newest = certificates.compute_fingerprint(signed.pair.certificate) if signed else ""
        if known_fingerprint and known_fingerprint not in (permitted, newest):
            raise AuthorityLost(
                "CertificateAuthorityLost",
                f"Secret {security.format_ca_secret(self._name, kind)!r} has disappeared. Restore "
                "it from a "
                "backup. If it is lost, every client has to get a new authority: permit that by "
                f"the annotation {REPLACE}={known_fingerprint}.",
            )
        if isinstance(source, Diagnosis):
            text = f"The {kind} CA: {source.message}"
            raise AuthorityLost(source.reason, text, waits=True)
        if source is None:
            authority = CertificateAuthority(self._make_pair(cluster, kind, now))
        else:
            authority = CertificateAuthority(source.pair, chain=source.chain)
        await self._write(cluster, kind, authority)
        return authority

    def _make_pair(self, cluster: QueueCluster, kind: str, now: datetime.datetime) -> KeyPair:
        days = security.get_settings(cluster, kind).validity_days
        return certificates.make_ca(f"{self._name}-{kind}-ca", now=now, validity_days=days)

    async def _renew(
        self,
        cluster: QueueCluster,
        kind: str,
        have: CertificateAuthority,
        source: SignedAuthority | Diagnosis | None,
        loaded: Mapping[int, LoadedCertificates] | None,
        leaf: str,
        now: datetime.datetime,
    ) -> tuple[CertificateAuthority, str]:
        """Take the next step of a renewal; return what it waits for too."""
        settings = security.get_settings(cluster, kind)
        if not settings.generate:
            return have, ""
        signed = source if isinstance(source, SignedAuthority) else None
        # An issuer has its own time, and its own command that asks for a renewal.
        requested, successor = "", None
        if source is None:
            requested = cluster["metadata"].get("annotations", {}).get(RENEW, "")
        else:
            successor = certificates.compute_fingerprint(signed.pair.certificate) if signed else ""
        step = ca_renewal.choose_next_step(
            have,
            now=now,
            renewal=settings.renewal,
            overlap=settings.overlap,
            requested=requested,
            loaded=loaded,
            leaf=leaf,
            unfetched=self._describe_late_users(kind, have, now - settings.overlap)
            if have.phase
            else "",
            successor=successor,
        )
        if step.action is RenewalAction.KEEP:
            return have, step.why
        new_pair = None
        if step.action is RenewalAction.TRUST_NEXT:
            new_pair = signed.pair if signed else self._make_pair(cluster, kind, now)
        chain = signed.chain if signed else b"" if source is None else have.chain
        changed = ca_renewal.apply_action(
            have, step.action, now=now, requested=requested, new_pair=new_pair, chain=chain
        )
        await self._write(cluster, kind, changed)
        text = f"The {kind} CA: {step.action.value}."
        await self._kube.record_event(cluster, "CertificateAuthorityRenewal", text)
        return changed, "a phase has begun" if changed.phase else ""

    async def _write(self, cluster: QueueCluster, kind: str, have: CertificateAuthority) -> None:
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
        await self._apply(cluster, security.format_ca_secret(self._name, kind), data, annotations)

    @staticmethod
    def _build_status(kind: str, have: CertificateAuthority) -> CertificateStatus:
        return {
            "name": f"{kind}-ca",
            "fingerprint": certificates.compute_fingerprint(have.current.certificate),
            "notAfter": certificates.format_not_after(have.current.certificate),
            "phase": have.phase,
        }

    # Certificates.

    def _describe_late_users(
        self, kind: str, have: CertificateAuthority, since: datetime.datetime
    ) -> str:
        """Return which QueueUsers' Secrets a renewal waits for; empty if there are none.

        A QueueUser that is not ready has no part in it: its condition says what it lacks, and it
        must not keep the others from new certificates.

        Secrets need all authorities of the brokers. Before the previous clients' authority is
        dropped, they need certificates of the current one, which clients have had time to fetch:
        since `since`, because the kubelet updates mounted Secrets late.
        """
        late = []
        for manifest in self._store.iterate("Secret"):
            meta = manifest["metadata"]
            user = meta.get("labels", {}).get(names.USER_LABEL)
            of_cluster = meta.get("labels", {}).get(names.CLUSTER_LABEL) == self._name
            if meta["namespace"] != self._namespace or not user or not of_cluster:
                continue
            if not is_ready(self._store.get("QueueUser", self._namespace, user) or {}):
                continue
            data = secret.decode_data(manifest)
            if kind == CLUSTER:
                # Clients of a listener with its own certificate do not trust the cluster's CA.
                is_own = OWN_CERTIFICATE in meta.get("annotations", {})
                is_late = not is_own and data.get("ca.crt") != have.client_bundle
            elif have.old and (pem := data.get("user.crt")):
                is_late = (
                    not certificates.is_signed_by(pem, have.current.certificate)
                    or certificates.get_issue_time(pem) > since
                )
            else:
                is_late = False
            late += [user] if is_late else []
        if not late:
            return ""
        suffix = f" and {len(late) - 3} more" if len(late) > 3 else ""
        return f"QueueUsers {', '.join(sorted(late)[:3])}{suffix} get new certificates"

    def _read_leaf_fingerprint(self) -> str:
        """Return the fingerprint of the certificate that brokers are to show; empty without one."""
        manifest = self._store.get(
            "Secret", self._namespace, security.format_broker_secret(self._name)
        )
        pem = secret.decode_data(manifest).get("broker.crt", b"") if manifest else b""
        try:
            return certificates.compute_fingerprint(pem) if pem else ""
        except BadCertificate:
            return "unreadable"  # No broker shows it, and `_issue_leaves` writes another one.

    async def _issue_leaves(
        self,
        cluster: QueueCluster,
        authorities: Mapping[str, CertificateAuthority],
        dns: Sequence[str],
        ips: Sequence[str],
        now: datetime.datetime,
    ) -> KeyPair:
        """Write the certificates of the brokers and the operator; return the operator's."""
        authority = authorities[CLUSTER]
        renewal = security.get_settings(cluster, CLUSTER).renewal
        days = security.get_settings(cluster, CLUSTER).validity_days

        async def issue_leaf(name: str, crt: str, key: str, **alternative_names: Any) -> KeyPair:
            have = secret.decode_data(await self._read(name) or {})
            pair = KeyPair(have.get(crt, b""), have.get(key, b""))
            names_wanted = (
                set(alternative_names.get("dns", ())),
                set(alternative_names.get("ips", ())),
            )
            if _is_good(pair, authority.current, names_wanted, now, renewal):
                return pair
            organization = certificates.ORGANIZATION
            return certificates.issue(
                authority.current,
                now=now,
                validity_days=days,
                organization=organization,
                **alternative_names,
            )

        broker = await issue_leaf(
            security.format_broker_secret(self._name),
            "broker.crt",
            "broker.key",
            common_name=security.format_broker_name(self._name),
            dns=dns,
            ips=ips,
            server=True,
        )
        operator = await issue_leaf(
            security.format_operator_secret(self._name),
            "tls.crt",
            "tls.key",
            common_name=security.OPERATOR,
        )
        data = {
            # Brokers read the key and the certificate from one file, so that they always match.
            # Clients may trust only the root of an authority that an issuer has signed.
            "broker.pem": broker.key + broker.certificate + _get_intermediates(authority),
            "broker.crt": broker.certificate,
            "broker.key": broker.key,
            "cluster-ca.crt": authorities[CLUSTER].trust_bundle,
            "clients-ca.crt": authorities[CLIENTS].trust_bundle,
        }
        await self._apply(cluster, security.format_broker_secret(self._name), data, owned=True)
        data = {
            "tls.crt": operator.certificate,
            "tls.key": operator.key,
            "ca.crt": authorities[CLUSTER].trust_bundle,
        }
        await self._apply(cluster, security.format_operator_secret(self._name), data, owned=True)
        return operator

    # Secrets.

    def _list_secret_names(self) -> list[str]:
        return [security.format_ca_secret(self._name, kind) for kind in security.KINDS]

    async def _read(self, name: str) -> Manifest | None:
        """Return a Secret; those of users have not the labels of the watched ones."""
        manifest = self._store.get("Secret", self._namespace, name)
        return manifest or await self._kube.get("v1", "Secret", name, self._namespace)

    async def _apply(
        self,
        cluster: QueueCluster,
        name: str,
        data: Mapping[str, bytes],
        annotations: Mapping[str, str] | None = None,
        *,
        owned: bool = False,
    ) -> None:
        want = secret.build_manifest(
            self._namespace,
            name,
            names.build_labels(self._name, "security"),
            secret.encode_data(data),
            owner=cluster if owned else None,
            annotations=annotations,
        )
        have = self._store.get("Secret", self._namespace, name)
        if have is None or has_drifted(want, have) or have.get("data") != want["data"]:
            # The Secret of an authority may come from the user, or from a backup.
            self._store.put(await self._kube.apply(want, adopt=name in self._list_secret_names()))


def parse_authority(manifest: Manifest) -> CertificateAuthority:
    """Return the authority in a Secret. Raises `BadCertificate`."""
    data, notes = secret.decode_data(manifest), manifest["metadata"].get("annotations", {})
    for key in ("ca.crt", "ca.key"):
        if not data.get(key):
            raise BadCertificate(f"it has no {key}")
    following = KeyPair(data.get("next.crt", b""), data.get("next.key", b""))
    began = notes.get(BEGAN)
    return CertificateAuthority(
        KeyPair(data["ca.crt"], data["ca.key"]),
        following if following.certificate else None,
        data.get("old.crt", b""),
        datetime.datetime.fromisoformat(began) if began else None,
        notes.get(HANDLED, ""),
        data.get("chain.crt", b""),
    )


def _get_intermediates(authority: CertificateAuthority) -> bytes:
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
    return may_stay and certificates.get_alternative_names(pair.certificate) == names_wanted
