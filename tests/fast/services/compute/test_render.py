from typing import Any

from neocloud.engines.base import Reference
from neocloud.services.compute.render import FilesystemView, filesystem_objects, filesystem_removal
from neocloud.services.compute.types import NAMESPACE_LABEL, ROOT_FILESYSTEM_LABEL

ID = "computefilesystem-e00abc"
LABELS = {NAMESPACE_LABEL: "slurmcluster-e00xyz", ROOT_FILESYSTEM_LABEL: "jail"}


def written(view: FilesystemView) -> list[dict[str, Any]]:
    return [manifest.to_dict() for manifest in filesystem_objects(view)]


def test_a_users_filesystem_has_a_namespace_of_its_own() -> None:
    namespace, claim = written(FilesystemView(ID, 1024, {}, owner_id=""))
    assert namespace == {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": ID, "labels": {"neocloud.dev/filesystem": ID}},
    }
    assert claim == {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": ID, "namespace": ID, "labels": {"neocloud.dev/filesystem": ID}},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1024"}}},
    }


def test_an_owned_filesystem_lies_in_its_owners_namespace_and_starts_as_a_copy() -> None:
    (claim,) = written(FilesystemView(ID, 1024, LABELS, owner_id="slurmcluster-e00xyz"))
    assert claim["metadata"]["namespace"] == "slurmcluster-e00xyz"
    assert claim["spec"]["dataSourceRef"] == {
        "apiGroup": "neocloud.dev",
        "kind": "RootFilesystem",
        "name": "jail",
    }


def test_labels_of_a_filesystem_nobody_owns_cannot_place_it_elsewhere() -> None:
    """A user's own label must not put a volume into another tenant's namespace."""
    namespace, claim = written(FilesystemView(ID, 1024, LABELS, owner_id=""))
    assert namespace["metadata"]["name"] == claim["metadata"]["namespace"] == ID
    assert "dataSourceRef" not in claim["spec"]


def test_the_owners_namespace_stays_when_the_filesystem_goes() -> None:
    owned = FilesystemView(ID, 1024, LABELS, owner_id="slurmcluster-e00xyz")
    assert filesystem_removal(owned) == [Reference("PersistentVolumeClaim", "slurmcluster-e00xyz", ID)]
    assert Reference("Namespace", ID, ID) in filesystem_removal(FilesystemView(ID, 1024, {}, owner_id=""))
