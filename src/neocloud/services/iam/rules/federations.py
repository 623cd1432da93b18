"""Rules of OIDC federations and federated credentials: addresses, keys, groups and accounts."""

import ipaddress
import json
from collections.abc import Iterable
from urllib.parse import urlsplit

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.group_commit import refuse_while_writing
from neocloud.messages.nebius.iam.v1 import (
    CreateFederatedCredentialsRequest,
    FederatedCredentials,
    UpdateFederatedCredentialsRequest,
)
from neocloud.messages.neocloud.iam.v1 import (
    CreateOidcFederationRequest,
    OidcFederation,
    OidcFederationStatus,
    UpdateOidcFederationRequest,
)
from neocloud.services.iam.rules.grants import grants_of, is_granted, refuse_mightier
from neocloud.services.iam.types import GROUP, SERVICE_ACCOUNT, is_tenant, lineage

ADD_MEMBER = "iam.groupMemberships.create"
FederationState = OidcFederationStatus.State


class OidcFederationRules(Rules[OidcFederation]):
    def defaults(self, resource: OidcFederation) -> None:
        if not resource.status.state:
            resource.status.state = FederationState.Value("ACTIVE")

    def request_violations(
        self, request: CreateOidcFederationRequest | UpdateOidcFederationRequest
    ) -> Iterable[Violation]:
        is_kept = bool(request.metadata.id) and not request.spec.issuer_url
        if not is_kept and (why := issuer_fault(request.spec.issuer_url)):
            yield Violation("spec.issuer_url", why)

    def violations(
        self, new: OidcFederation, old: OidcFederation | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        parent = reader.get(new.metadata.parent_id)
        if parent is None or not is_tenant(parent):
            yield Violation(
                "metadata.parent_id",
                "must be the id of a tenant, tenant-...",
            )
        if not new.metadata.name:
            yield Violation("metadata.name", "a federation needs a name")
        known = set(old.spec.group_ids if old is not None else ())
        for index, group_id in enumerate(new.spec.group_ids):
            yield from _group_violations(f"spec.group_ids[{index}]", group_id, group_id in known, new, reader)


class FederatedCredentialsRules(Rules[FederatedCredentials]):
    def owner_id(self, resource: FederatedCredentials) -> str:
        return resource.spec.subject_id

    def request_violations(
        self, request: CreateFederatedCredentialsRequest | UpdateFederatedCredentialsRequest
    ) -> Iterable[Violation]:
        provider = request.spec.oidc_provider
        is_kept = bool(request.metadata.id) and not provider.issuer_url
        if not is_kept and (why := issuer_fault(provider.issuer_url)):
            yield Violation("spec.oidc_provider.issuer_url", why)
        if provider.jwk_set_json and (why := key_set_fault(provider.jwk_set_json)):
            yield Violation("spec.oidc_provider.jwk_set_json", why)

    def violations(
        self, new: FederatedCredentials, old: FederatedCredentials | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        spec = new.spec
        account = reader.get(spec.subject_id) if spec.subject_id else None
        if account is None or account.kind != SERVICE_ACCOUNT or account.parent_id != new.metadata.parent_id:
            yield Violation("spec.subject_id", f'"{spec.subject_id}" is not a service account of the project')
        else:
            refuse_mightier("iam.federatedCredentials.create", spec.subject_id, reader)
        if old is not None and old.spec.subject_id != spec.subject_id:
            yield Violation("spec.subject_id", "cannot be changed; create other credentials")
        if not spec.federated_subject_id:
            yield Violation("spec.federated_subject_id", "is required: the `sub` of the workload's tokens")


def issuer_fault(url: str) -> str:
    """Return what is wrong with an issuer's address; "" for a valid one."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    else:
        if parts.scheme == "http" and is_local and not (parts.query or parts.fragment or parts.username):
            return ""
    return "" if _is_https(url) else "must be an https address, exactly as `iss` in the issuer's tokens"


def key_set_fault(text: str) -> str:
    """Return what is wrong with a key set, which must hold public keys only; "" for a valid one."""
    refuse_while_writing("Reading a key set")
    try:
        keys = json.loads(text)["keys"]
        kinds = [key["kty"] for key in keys]
        is_private = any("d" in key for key in keys)
    except (ValueError, TypeError, KeyError, RecursionError):
        return 'must be a JWK set: {"keys": [{"kty": ...}]}'
    if is_private:
        return (
            "holds a private key. Create a new pair, since this one has left its machine; send its public key"
        )
    if not kinds or not set(kinds) <= {"RSA", "EC", "OKP"}:
        return "must hold one or more public keys of kty RSA, EC or OKP"
    return ""


def _is_https(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return (
            parts.scheme == "https"
            and bool(parts.hostname)
            and not (parts.query or parts.fragment or parts.username)
        )
    except ValueError:
        return False


def _group_violations(
    field: str, group_id: str, is_known: bool, new: OidcFederation, reader: ResourceReader
) -> Iterable[Violation]:
    group = reader.get(group_id)
    if group is None or group.kind != GROUP or group.parent_id != new.metadata.parent_id:
        yield Violation(field, f'"{group_id}" is not a group of this tenant')
    elif not is_known and reader.subject is not None:
        path = [row.id for row in lineage(group_id, reader.get)]
        if not is_granted(grants_of(reader, reader.subject.id), ADD_MEMBER, path):
            raise contract.permission_denied(
                ADD_MEMBER,
                group_id,
                f"To let a federation add members to {group_id}, you must be allowed to do so. Ask an admin.",
            )
        refuse_mightier(ADD_MEMBER, group_id, reader)
