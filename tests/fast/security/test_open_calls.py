"""Modules that read or write where tenants can write use `core.untrusted.files`, not names (C1, H6, H7)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import neocloud

ROOT = Path(neocloud.__file__).parent
WATCHED = (
    "data_plane",
    "model_gateway",
    "services/ai",
    "services/compute",
    "services/inference",
    "services/slurm",
    "services/tuning",
    "engines/podman",
)
BY_NAME = {
    *("open", "read_text", "read_bytes", "write_text", "write_bytes", "touch", "iterdir", "glob", "rglob"),
    *("symlink_to", "hardlink_to"),
}
"""Methods of paths; `open()` itself too."""
OF_MODULES = {
    "os": {"open", "link", "symlink", "listdir", "scandir", "walk", "chown", "chmod", "truncate", "mkfifo"},
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move", "chown"},
    "io": {"open"},
}
ALLOWED = {
    "data_plane/control_plane_client.py": "the key in the gateway's own folder",
    "data_plane/certificate_files.py": "files that the operator names",
    "data_plane/gateway_keys.py": "keys in folders of the gateways and of the store of metrics",
    "model_gateway/openai_files/batches.py": "a batch's folder, the gateway's own; names in it are fixed",
    "model_gateway/openai_files/batch_runner.py": "folders of batches; names are ids that it made",
    "model_gateway/openai_files/bucket_files.py": "the gateway's own folder; names are ids that it made",
    "model_gateway/openai_files/files.py": "the gateway's own folder; names are ids that it made",
    "model_gateway/openai_files/validation.py": "a file of the store, or the input in a batch's folder",
    "model_gateway/pages/routes.py": "files of the package",
    "model_gateway/retrieval/hnsw.py": "the folder of a store, the gateway's own; names in it are fixed",
    "model_gateway/retrieval/index_process.py": "folders of stores; names are ids that the gateway made",
    "model_gateway/retrieval/reading.py": "a file of the store, passed open to a process without rights",
    "model_gateway/routing/proxy.py": "opens accounts, not files",
    "model_gateway/authentication.py": "a file in the gateway's own folder",
    "model_gateway/routing/routes.py": "a file in the gateway's own folder",
    "engines/podman/no_namespaces.py": "Podman's own profile, below /usr",
    "services/ai/__init__.py": "records of images that the operator built",
    "services/compute/reconcile/copies.py": "records of images that the operator built",
    "services/compute/catalogue.py": "a file of the package",
    "services/compute/disk_export.py": "runs in a pod of its own, which the disk is mounted into read-only",
    "services/compute/disk_import.py": "runs in a pod of its own, in the claim of a new image",
    "services/compute/reconcile/disk_export_pod.py": "a file of the package",
    "services/compute/reconcile/image_import.py": "a file of the package",
    "services/inference/architectures.py": "a file of the package",
    "services/inference/render.py": "a file of the package",
    "services/slurm/api/check.py": "programs of the package, sent into the cluster",
    "services/slurm/api/diagnose.py": "the program py-spy of the package, sent into the cluster",
    "services/slurm/api/probes/confinement.py": "runs inside the cluster, as the job's user",
    "services/slurm/api/probes/node.py": "runs inside the cluster",
    "services/slurm/api/probes/ranks.py": "runs inside the cluster, as the job's user",
    "services/slurm/reconcile/__init__.py": "a certificate in the state folder, the operator's own",
    "engines/podman/host.py": "/proc, /dev/kvm",
    "engines/podman/storage/attached_claims.py": "folders of the engine's own, which pods have read-only",
    "engines/podman/network/attachments.py": "the engine's own folder, /etc/resolv.conf, /sys/class/net",
    "engines/podman/network/public_interface.py": "/proc/sys",
    "engines/podman/network/named_namespaces.py": "/run/netns, which is root's alone",
    "engines/podman/container_logs.py": "what Podman writes of a container's output",
    "engines/podman/followed_file.py": "what Podman writes of a container's output, and of its events",
    "engines/podman/storage/container_disks.py": "the top of file systems; containers see a folder below it",
    "engines/podman/storage/pulled_images.py": "the engine's own folder; the top of file systems, as above",
    "engines/podman/storage/pod_storage.py": "a file of the engine's own, which pods have read-only",
    "engines/podman/storage/mounts.py": "/proc, and mount points of root's own",
    "engines/podman/network/namespace_networks.py": "records in the engine's own folder, /proc",
    "engines/podman/bootstrap.py": "the engine's own folder, /sys/class/net",
    "engines/podman/containers.py": "/proc, /sys/fs/cgroup",
    "engines/podman/gpus/cdi.py": "/etc/cdi, /var/run/cdi",
    "engines/podman/gpus/owner.py": "a record in a folder of root's own",
    "engines/podman/own_cpus.py": "/sys/fs/cgroup",
    "engines/podman/gpus/passthrough.py": "/proc",
    "engines/podman/gpus/pci.py": "/sys",
    "engines/podman/layout.py": "records in the engine's own folder",
    "engines/podman/service.py": "Podman's own folders",
    "engines/podman/storage/pod_mounts.py": "/proc, root's own mount points and folders",
    "engines/podman/storage/sized_filesystems.py": "file systems in files, where only root enters",
    "engines/podman/storage/volumes.py": "names of volumes, hostPaths that services name",
}


def by_name(path: Path) -> Iterator[str]:
    """Calls that look a file up by name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id == "open":
            yield f"{path}:{node.lineno} open()"
        elif isinstance(called, ast.Attribute):
            owner = called.value.id if isinstance(called.value, ast.Name) else ""
            if called.attr in OF_MODULES.get(owner, ()):
                yield f"{path}:{node.lineno} {owner}.{called.attr}()"
            elif called.attr in BY_NAME and owner not in (*OF_MODULES, "Folder", "tarfile"):
                yield f"{path}:{node.lineno} .{called.attr}()"


@pytest.mark.parametrize("folder", WATCHED)
def test_nothing_is_opened_by_name(folder: str) -> None:
    files = {path: str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py")}
    assert files, "a folder that is watched has another name"
    found = [call for path, name in files.items() if name not in ALLOWED for call in by_name(path)]
    assert not found, "use neocloud.core.untrusted.files, or say in ALLOWED why no tenant can write there"


def test_what_is_allowed_is_there_and_needs_it() -> None:
    assert [name for name in ALLOWED if not (ROOT / name).exists() or not list(by_name(ROOT / name))] == []


def test_the_lint_sees_what_it_is_for(tmp_path: Path) -> None:
    file = tmp_path / "new.py"
    file.write_text("open(a)\nfolder.read_text()\nos.link(a, b)\nshutil.copytree(a, b)\nFolder.open(a)\n")
    assert len(list(by_name(file))) == 4
