"""A network of the Podman engine on which machines start, from the objects that compute renders."""

import json
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from neocloud.engines.base import Reference
from neocloud.engines.manifest import Interface, Namespace, Pod, read_manifest
from neocloud.engines.podman import PodmanEngine
from neocloud.services.compute.render import (
    DiskView,
    InterfaceView,
    MachineView,
    VolumeSource,
    VolumeView,
    desired_disk,
    identity_secret,
    machine_objects,
    machine_pod,
    volume_objects,
)
from neocloud.services.compute.started_pod import running_pod
from tests.e2e.ssh import ssh_until

NETWORK, SUBNET, DOMAIN = "vpcnetwork-e00boot", "vpcsubnet-e00boot", "boot.internal"
ADDRESS, PREFIX = "10.219.1.5", "10.219.1"
CARD = Interface(
    network=NETWORK,
    subnet=SUBNET,
    address=IPv4Address(ADDRESS),
    mac="52:54:00:12:34:56",
    security_groups=("open",),
)
MACHINE = "computeinstance-e00boot"
DISK = "computedisk-e00abcdefghijklmnop"  # as long as real ones
TOKEN = "token-of-the-service-account"
KEY = "5eed" * 16
"""Of all disks of the machine."""


@dataclass
class MachineBench:
    """One network, one machine at a time."""

    engine: PodmanEngine
    launcher: str
    key: Path
    """Private; the public half lies beside it."""
    view: MachineView | None = None
    """The machine that was prepared last."""

    @property
    def pod(self) -> Reference:
        return Reference("Pod", MACHINE, MACHINE)

    async def network(self) -> None:
        both = ("ingress", "egress")
        everything = [{"direction": each, "access": "allow", "protocol": "any"} for each in both]
        subnet = {"name": SUBNET, "cidrs": [f"{PREFIX}.0/24"], "gateway": f"{PREFIX}.1", "routes": []}
        spec = {
            "subnets": [subnet],
            "securityGroups": [{"name": "open", "rules": everything}],
            "domain": DOMAIN,
        }
        metadata = {"name": NETWORK, "namespace": NETWORK}
        network = read_manifest({"kind": "VirtualNetwork", "metadata": metadata, "spec": spec})
        await self.engine.apply([Namespace(name=NETWORK), network])

    async def start(
        self, image: str, size_bytes: int, memory_mib: int, vcpus: int, user_data: str, **changes: Any
    ) -> None:
        pod = await self.prepare(image, size_bytes, memory_mib, vcpus, user_data, **changes)
        await self.engine.apply([pod])

    async def prepare(
        self, image: str, size_bytes: int, memory_mib: int, vcpus: int, user_data: str, **changes: Any
    ) -> Pod:
        """Everything but the pod, which is returned. `changes` are fields of the MachineView."""
        view = MachineView(
            id=MACHINE,
            name="boot",
            parent_id="project-e00bench",
            region="eu-north1",
            image=self.launcher,
            vcpus=vcpus,
            memory_mib=memory_mib,
            acceleration="tcg",
            restart_policy="OnFailure",
            hostname="worker-1",
            interface=InterfaceView(CARD, 24, f"{PREFIX}.1", DOMAIN),
            disks=(DiskView(DISK, "boot", size_bytes, key=KEY),),
            user_data=user_data,
            has_identity=True,
        )
        view = replace(view, **changes)
        volume = VolumeView(DISK, size_bytes, VolumeSource(machine_image=image))
        identity = identity_secret(MACHINE, TOKEN, "2030-01-01T00:00:00Z")
        await self.engine.apply([*volume_objects(volume), *machine_objects(view), identity])
        self.view = view
        return machine_pod(view)

    async def attach(self, *disks: DiskView) -> dict[str, object]:
        """Attach just these disks to the machine's pod; return the last one as attach-disk takes it."""
        assert self.view is not None
        started = machine_pod(self.view).spec()
        view = replace(self.view, disks=(self.view.disks[0], *disks), started=started)
        for disk in disks:
            await self.engine.apply(volume_objects(VolumeView(disk.id, disk.size_bytes)))
        await self.engine.apply([*machine_objects(view), running_pod(machine_pod(view), started)])
        return desired_disk(view.disks[-1], started)

    async def remove(self) -> None:
        names = [MACHINE, DISK]
        await self.engine.remove([Reference("Namespace", name, name) for name in names])

    async def control(self, *words: str) -> dict[str, Any]:
        done = await self.engine.exec(self.pod, ["machine-control", *words], timeout_seconds=30)
        assert done.exit_code == 0, done.stdout.decode() + done.stderr.decode()
        return json.loads(done.stdout)

    def ssh(self, command: str) -> str:
        return ssh_until(self.key, "ubuntu", ADDRESS, command)

    def public_key(self) -> str:
        return self.key.with_suffix(".pub").read_text().strip()

    async def serial_log(self) -> str:
        return "\n".join([line async for line in self.engine.logs(self.pod)])
