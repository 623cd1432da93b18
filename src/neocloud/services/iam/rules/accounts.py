"""What is legal for projects, service accounts and their keys."""

from collections.abc import Iterable, Mapping
from typing import Any

from neocloud.core import contract
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.messages.nebius.iam.v1 import AuthPublicKeyStatus, ContainerStatus, SuspensionState
from neocloud.messages.nebius.iam.v1 import State as ContainerState
from neocloud.services.iam.rules.grants import refuse_mightier
from neocloud.services.iam.rules.keys import (
    PublicKey,
    PublicKeyError,
    account_problem,
    expiry_violations,
    read_public_key,
)
from neocloud.services.iam.types import PROJECT_ID_PREFIX, State, is_project, is_tenant

KeyState = AuthPublicKeyStatus.State

DEFAULT_REGION = "eu-north1"


def active_container(region: str) -> Any:
    return ContainerStatus(
        container_state=ContainerState.Value("ACTIVE"),
        suspension_state=SuspensionState.Value("NONE"),
        region=region,
    )


class ProjectRules(Rules):
    def quota_demand(self, resource: Any) -> Mapping[str, int]:
        return {"iam.project.count": 1} if resource.metadata.parent_id else {}

    def defaults(self, resource: Any) -> None:
        if not resource.spec.region:
            resource.spec.region = DEFAULT_REGION
        resource.status.CopyFrom(active_container(resource.spec.region))

    def violations(self, new: Any, old: Any | None, reader: ResourceReader) -> Iterable[Violation]:
        if old is None:
            parent = reader.get(new.metadata.parent_id)
            if parent is None or not is_tenant(parent):
                yield Violation("metadata.parent_id", "a project lies in a tenant; give an id tenant-...")
            if not new.metadata.name:
                yield Violation("metadata.name", "a project needs a name")
        elif not new.metadata.id.startswith(f"{PROJECT_ID_PREFIX}-"):
            yield Violation("metadata.id", "is a tenant, and tenants cannot be changed here")
        elif old.spec.region != new.spec.region:
            yield Violation(
                "spec.region", f'a project stays in its region "{old.spec.region}"; make another project'
            )

    def check_delete(self, resource: Any, reader: ResourceReader) -> None:
        if not resource.metadata.parent_id:
            raise contract.bad_state(resource.metadata.id, "A tenant is not deleted through the API.")


class ServiceAccountRules(Rules):
    def quota_demand(self, resource: Any) -> Mapping[str, int]:
        return {"iam.service-account.count": 1}

    def defaults(self, resource: Any) -> None:
        resource.status.active = True

    def violations(self, new: Any, old: Any | None, reader: ResourceReader) -> Iterable[Violation]:
        if old is None and not _lies_in_project(new, reader):
            yield Violation(
                "metadata.parent_id", "a service account lies in a project; give an id project-..."
            )


class AuthPublicKeyRules(Rules):
    def quota_demand(self, resource: Any) -> Mapping[str, int]:
        return {"iam.auth-public-key.count": 1}

    def defaults(self, resource: Any) -> None:
        status = resource.status
        if not status.state:
            status.state = KeyState.Value(State.ACTIVE)
        is_read = bool(status.fingerprint) or not resource.spec.data
        key = None if is_read else _read(resource.spec.data)
        if isinstance(key, PublicKey):
            status.fingerprint, status.algorithm, status.key_size = key.fingerprint, key.algorithm, key.bits

    def owner_id(self, resource: Any) -> str:
        return resource.spec.account.service_account.id

    def request_violations(self, request: Any) -> Iterable[Violation]:
        is_kept = bool(request.metadata.id) and not request.spec.data
        key = None if is_kept else _read(request.spec.data)
        if isinstance(key, PublicKeyError):
            yield Violation("spec.data", str(key))

    def violations(self, new: Any, old: Any | None, reader: ResourceReader) -> Iterable[Violation]:
        if old is not None:
            return
        yield from account_problem(new, reader.get)
        refuse_mightier("iam.authPublicKeys.create", self.owner_id(new), reader)
        yield from expiry_violations(new, "expires_at", reader.now)


def _read(pem: str) -> PublicKey | PublicKeyError:
    try:
        return read_public_key(pem)
    except PublicKeyError as error:
        return error


def _lies_in_project(new: Any, reader: ResourceReader) -> bool:
    parent = reader.get(new.metadata.parent_id)
    return parent is not None and is_project(parent)
