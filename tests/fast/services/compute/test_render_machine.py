"""A machine as Kubernetes objects: the input of the launcher and the engine (CMP-01)."""

import json
import os
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import yaml

from neocloud.engines.base import Reference
from neocloud.engines.manifest import Interface, Pod, Secret
from neocloud.services.compute.render import (
    DiskView,
    GpuView,
    InterfaceView,
    MachineView,
    SharedView,
    VolumeSource,
    VolumeView,
    identity_secret,
    machine_objects,
    machine_pod,
    volume_objects,
)
from neocloud.services.compute.started_pod import running_pod

SNAPSHOT = Path(__file__).parent / "snapshots" / "machine.yaml"
WRITE = "NEOCLOUD_WRITE_SNAPSHOTS"
ID = "computeinstance-e00web"
VIEW = MachineView(
    id=ID,
    name="web",
    parent_id="project-e00lab",
    region="eu-north1",
    image="localhost/neocloud/launcher:0123456789ab",
    vcpus=2,
    memory_mib=2048,
    acceleration="kvm",
    restart_policy="OnFailure",
    hostname="web-1",
    interface=InterfaceView(
        Interface(
            network="vpcnetwork-e00x",
            subnet="vpcsubnet-e00x",
            address=IPv4Address("10.128.0.5"),
            mac="52:54:00:ab:cd:ef",
            security_groups=("vpcsecuritygroup-e00x",),
            public_address=IPv4Address("203.0.113.5"),
        ),
        prefix_length=24,
        gateway="10.128.0.1",
        domain="default-network.internal",
    ),
    disks=(
        DiskView("computedisk-e00boot", "boot", 10 << 30),
        DiskView("computedisk-e00data", "data", 4 << 30, is_read_only=True),
    ),
    filesystems=(
        SharedView(
            Reference("PersistentVolumeClaim", "computefilesystem-e00fs", "computefilesystem-e00fs"), "shared"
        ),
    ),
    gpus=(GpuView("0000:01:00.0", "7"), GpuView("0000:01:00.1", "7")),
    user_data="#cloud-config\nusers: []\n",
    has_identity=True,
)


def desired(view: MachineView) -> dict:
    secret = machine_objects(view)[1]
    assert isinstance(secret, Secret)
    return json.loads(secret.contents["machine.json"])


def test_the_objects_are_those_of_the_snapshot() -> None:
    volume = VolumeView("computedisk-e00boot", 10 << 30, VolumeSource(machine_image="ubuntu24.04-driverless"))
    objects = [*volume_objects(volume), *machine_objects(VIEW), machine_pod(VIEW)]
    rendered = yaml.safe_dump_all([each.to_dict() for each in objects], sort_keys=False, width=110)
    rendered += f"--- # machine.json\n{yaml.safe_dump(desired(VIEW))}"
    if os.environ.get(WRITE):
        SNAPSHOT.write_text(rendered)
    assert rendered == SNAPSHOT.read_text(), f"meant? {WRITE}=1 pytest {__file__}, then look at the diff"


def test_no_machine_is_privileged() -> None:
    for filesystems, more in ((VIEW.filesystems, {"SYS_CHROOT", "FSETID", "SETFCAP"}), ((), set())):
        (container,) = machine_pod(replace(VIEW, filesystems=filesystems)).spec()["containers"]
        security = container["securityContext"]
        assert set(security) == {"allowPrivilegeEscalation", "capabilities"}
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"]["drop"] == ["ALL"]
        assert set(security["capabilities"]["add"]) == {
            *("NET_ADMIN", "NET_BIND_SERVICE", "CHOWN", "DAC_OVERRIDE", "FOWNER"),
            *("SETUID", "SETGID", "SETPCAP", "KILL"),
            *more,
        }


def test_what_changes_while_it_runs_makes_no_other_pod() -> None:
    """Addresses and groups are annotations, and the guest's data is a Secret."""
    card = replace(
        VIEW.interface.card,
        public_address=IPv4Address("203.0.113.9"),
        security_groups=("vpcsecuritygroup-e00y",),
    )
    moved = replace(VIEW.interface, card=card)
    grown = (replace(VIEW.disks[0], size_bytes=20 << 30), VIEW.disks[1])
    changed = replace(VIEW, interface=moved, disks=grown, user_data="#cloud-config\n")
    assert machine_pod(changed).fingerprint == machine_pod(VIEW).fingerprint
    assert machine_pod(changed) != machine_pod(VIEW)


def test_the_spec_of_a_running_machine_is_kept_and_read_back() -> None:
    """Its record holds the spec as a dictionary; the pod of it must not look like another one."""
    pod = machine_pod(VIEW)
    kept = json.loads(json.dumps(pod.spec()))
    assert running_pod(pod, kept) == pod == Pod.from_dict(pod.to_dict())
    assert running_pod(pod, kept).spec() == kept


def test_without_kvm_no_device_of_it_is_asked_for() -> None:
    volumes = machine_pod(replace(VIEW, acceleration="tcg", gpus=())).spec()["volumes"]
    assert [v["hostPath"]["path"] for v in volumes if "hostPath" in v] == ["/dev/net/tun"]


def test_a_token_is_what_the_metadata_service_hands_out() -> None:
    secret = identity_secret(ID, "secret", "2026-11-21T12:00:00Z")
    assert json.loads(secret.contents["token.json"]) == {
        "access_token": "secret",
        "expires_at": "2026-11-21T12:00:00Z",
        "token_type": "Bearer",
    }
