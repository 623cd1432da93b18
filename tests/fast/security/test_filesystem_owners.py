"""H5: a filesystem that another resource owns is mounted by its owner alone, whichever service asks."""

import ast
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from neocloud.messages.nebius.compute.v1 import Instance
from neocloud.messages.neocloud.slurm.v1 import Cluster

import neocloud.services
from neocloud.core import contract
from neocloud.core.readers import ServiceRegistry
from neocloud.core.reconcile.reconciler import Failed
from neocloud.core.store.protocol import Resource
from neocloud.services.ai.reconcile import scope as ai_scope
from neocloud.services.ai.rules import attachment_violations
from neocloud.services.compute.public import find_filesystem
from neocloud.services.compute.rules.instance_attachments import storage_violations
from neocloud.services.compute.types import FILESYSTEM
from neocloud.services.slurm.rules import ClusterRules

PROJECT, OTHER = "project-e00mine", "project-e00other"
MOMENT = datetime(2026, 11, 22, tzinfo=UTC)
OWN = Resource("computefilesystem-e00own", FILESYSTEM, PROJECT, "data", MOMENT, MOMENT, state="READY")
REFUSED = {
    "owned": replace(OWN, id="computefilesystem-e00root", owner_id="slurmcluster-e00one"),
    "foreign": replace(OWN, id="computefilesystem-e00foreign", parent_id=OTHER),
    "leaving": replace(OWN, id="computefilesystem-e00leaving", deleted_at=MOMENT),
    "no filesystem": replace(OWN, id="computedisk-e00one", kind="nebius.compute.v1.Disk"),
}
ROWS = {row.id: row for row in (OWN, *REFUSED.values())}
WORLD: Any = SimpleNamespace(
    get=ROWS.get,
    find=lambda *_: None,
    list=lambda *_: [],
    claims=lambda *_: {},
    inventory=None,
    provided=ServiceRegistry(),
)


def endpoint(filesystem_id: str) -> Any:
    message = contract.message("nebius.ai.v1.Endpoint")()
    message.metadata.parent_id = PROJECT
    message.spec.volumes.add(source=filesystem_id, container_path="/data")
    return attachment_violations(message, WORLD)


def job(filesystem_id: str) -> Any:
    message = contract.message("nebius.ai.v1.Job")()
    message.metadata.parent_id = PROJECT
    message.spec.volumes.add(source=filesystem_id, container_path="/data")
    return attachment_violations(message, WORLD)


def instance(filesystem_id: str) -> Any:
    message = Instance()
    message.metadata.parent_id = PROJECT
    message.spec.filesystems.add(mount_tag="data").existing_filesystem.id = filesystem_id
    return storage_violations(message, None, WORLD)


def cluster(filesystem_id: str) -> Any:
    message = Cluster()
    message.metadata.parent_id = PROJECT
    message.spec.filesystems.add(filesystem_id=filesystem_id, mount_path="/mnt/data")
    return ClusterRules().violations(message, message, WORLD)


@pytest.mark.parametrize("ask", [endpoint, job, instance, cluster])
@pytest.mark.parametrize("why", REFUSED)
def test_no_service_mounts_what_is_not_the_project_s_own(ask: Any, why: str) -> None:
    def named(filesystem_id: str) -> list[str]:
        return [each.message for each in ask(filesystem_id) if f'"{filesystem_id}"' in each.message]

    assert named(REFUSED[why].id) and not named(OWN.id)
    assert "there is no" in named(REFUSED[why].id)[0].lower()


def test_the_one_function() -> None:
    assert find_filesystem(WORLD, OWN.id, PROJECT) == OWN
    for row in REFUSED.values():
        assert find_filesystem(WORLD, row.id, PROJECT) is None


async def test_a_workload_of_an_older_release_does_not_get_it_either() -> None:
    """Its spec was taken before the rules looked at owners."""

    async def get(resource_id: str) -> Resource | None:
        return ROWS.get(resource_id)

    def scope(filesystem_id: str) -> Any:
        message = contract.message("nebius.ai.v1.Job")()
        message.metadata.parent_id = PROJECT
        message.spec.volumes.add(source=filesystem_id, container_path="/data")
        return SimpleNamespace(
            context=SimpleNamespace(get=get), message=message, spec=message.spec, mounts=()
        )

    await ai_scope.find_filesystems(scope(OWN.id))
    with pytest.raises(Failed, match="belongs to another"):
        await ai_scope.find_filesystems(scope(REFUSED["owned"].id))


MAY_NAME_THE_KIND = {
    "compute/__init__.py": "declares it, and charges for it",
    "compute/public.py": "find_filesystem itself",
    "compute/types.py": "its name",
    "compute/reconcile/volumes.py": "makes it true",
    "compute/rules/instance_attachments.py": "only in the text of a refusal",
    "slurm/__init__.py": "wakes the clusters that attach one which changes",
    "slurm/reconcile/__init__.py": "makes the shared root, as its owner",
}


def test_nobody_else_looks_filesystems_up() -> None:
    """Rules that let a resource name a filesystem use find_filesystem, which knows about owners."""
    services = Path(neocloud.services.__file__).parent
    found, attaching = set(), set()
    for path in services.rglob("*.py"):
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        file = str(path.relative_to(services))
        found |= {file} if "FILESYSTEM" in names else set()
        attaching |= {file} if "filesystem_attachment" in names and "find_filesystem" not in names else set()
        assert '"nebius.compute.v1.Filesystem"' not in path.read_text() or file in MAY_NAME_THE_KIND
    assert found <= MAY_NAME_THE_KIND.keys(), "use compute.public.find_filesystem, or say here why not"
    assert not attaching, "what attaches a filesystem looks it up by compute.public.find_filesystem"
