"""The network part of the Podman engine, in a namespace of its own and without Podman, for `test_lan.py`.

Each line of input is a JSON object: the public address of each pod; `null` removes the engine's traces. The
answer is one line: the addresses that the interface announces, or an error. `"warnings"` prints the warnings.
"""

import asyncio
import json
import sys
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, cast

from neocloud.engines.base import EngineError
from neocloud.engines.manifest import Pod, read_manifest
from neocloud.engines.manifest.pod import INTERFACE_ANNOTATION
from neocloud.engines.podman.layout import Layout, Objects, write_record
from neocloud.engines.podman.network.addresses import withdraw_public_addresses
from neocloud.engines.podman.network.attachments import Attachments
from neocloud.engines.podman.network.firewall import render_tables
from neocloud.engines.podman.network.namespace_networks import NamespaceNetworks
from neocloud.engines.podman.network.public_interface import PublicInterface
from neocloud.engines.podman.network.security_rules import load
from neocloud.engines.podman.network.virtual_networks import NetworkSnapshot, VirtualNetworks

UNUSED = cast(Any, None)


class Networks:
    def __init__(self, home: Path, interface: str, bridge: str, pods: dict[str, list[str]]) -> None:
        self._layout = Layout.of(home)
        self._pods = pods
        self._objects = Objects(self._layout)
        virtual = VirtualNetworks(self._layout, UNUSED, self._objects, lambda pod: f"port-{pod.name}")
        self.interface = PublicInterface(self._layout, interface)
        self._networks = NamespaceNetworks(
            self._layout, UNUSED, IPv4Network("10.89.0.0/16"), virtual, self._objects, (), self.interface
        )
        self._attachments = Attachments(UNUSED, self._networks, virtual, UNUSED, UNUSED)
        cidr, gateway = "10.211.1.0/24", "10.211.1.1"
        subnet = {"name": "one", "cidrs": [cidr], "gateway": gateway, "routes": []}
        rules = [{"direction": "ingress", "access": "allow", "protocol": "tcp", "ports": [7000]}]
        spec = {"subnets": [subnet], "securityGroups": [{"name": "server", "rules": rules}]}
        metadata = {"name": "net", "namespace": "net"}
        self._objects.put(read_manifest({"kind": "VirtualNetwork", "metadata": metadata, "spec": spec}))
        row = {"network": "net", "subnet": "one", "cidr": cidr, "gateway": gateway, "interface": bridge}
        write_record(self._layout.engine / "subnets.json", {"bridges": [row]})

    async def apply(self, public: dict[str, str]) -> None:
        for name in sorted(self._pods, key=lambda name: name in public):  # released before they are assigned
            pod = self._pod(name, public.get(name))
            async with self._attachments.admitted(pod):
                self._objects.put(pod)
            await self._networks.sync()

    async def destroy(self) -> None:
        await withdraw_public_addresses(self._layout, ())
        await load(render_tables(self._layout, [], NetworkSnapshot()))
        await self.interface.remove_table()

    def _pod(self, name: str, public: str | None) -> Pod:
        address, mac = self._pods[name]
        fields = {"network": "net", "subnet": "one", "address": address, "mac": mac}
        fields |= {"securityGroups": ["server"], **({"publicAddress": public} if public else {})}
        annotations = {INTERFACE_ANNOTATION: json.dumps(fields)}
        metadata = {"name": name, "namespace": f"space-{name}", "annotations": annotations}
        spec = {"containers": [{"name": "main", "image": "busybox"}]}
        return cast(Pod, read_manifest({"kind": "Pod", "metadata": metadata, "spec": spec}))


async def main() -> None:
    home, interface, bridge, pods = sys.argv[1:]
    networks = Networks(Path(home), interface, bridge, json.loads(pods))
    while line := await asyncio.to_thread(sys.stdin.readline):
        public = json.loads(line)
        try:
            if public == "warnings":
                answer = " ".join(await networks.interface.warnings())
            else:
                await (networks.destroy() if public is None else networks.apply(public))
                answer = ", ".join(networks.interface.details().values())
        except EngineError as error:
            answer = str(error)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


asyncio.run(main())
