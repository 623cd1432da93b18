"""Which bridge port a pod's card is plugged into.

Netavark names ports as they come, so the port is looked up once the pod has its network, before its program
starts. It is noted with the number that the kernel gave it; a note whose port is gone, as after a reboot, is
worth nothing.
"""

import asyncio
import json
from pathlib import Path

from neocloud.engines.base import EngineError, Reference
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.records import read_record, write_record

_INTERFACES = Path("/sys/class/net")
_FILTER_EACH_BRIDGE = "bridge/nf_call_iptables"
_FILTER_ALL = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
_CARD = "eth0"


class Ports:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    async def bind(self, pod: Reference, network_namespace: str, bridge: str) -> None:
        """Note the port of the pod whose network lies in this namespace, and have the bridge filtered."""
        number = await _peer_of(network_namespace, pod)
        port = await asyncio.to_thread(_interface_with, number)
        if port is None or (_INTERFACES / port / "master").resolve().name != bridge:
            raise EngineError(f"Pod {pod.name} has no port on {bridge}; apply it again.")
        _filter(bridge)
        write_record(self._path(pod), {"port": port, "number": number})

    def find(self, pod: Reference) -> str | None:
        record = read_record(self._path(pod))
        if record and _number_of(record["port"]) == record["number"]:
            return record["port"]
        return None

    def forget(self, pod: Reference) -> None:
        self._path(pod).unlink(missing_ok=True)

    def _path(self, pod: Reference) -> Path:
        return self._layout.namespace(pod.namespace) / "pods" / pod.name / "port.json"


def require_filters() -> None:
    """Security groups hold between pods of one bridge only where bridges pass the firewall."""
    if not _FILTER_ALL.exists():
        raise EngineError(
            "Virtual networks need the kernel module br_netfilter, which is not loaded: without it security "
            "groups would not hold between pods of one subnet. Load it with: modprobe br_netfilter"
        )


async def _peer_of(network_namespace: str, pod: Reference) -> int:
    """The other end of the pod's card, as this machine counts interfaces."""
    process = await asyncio.create_subprocess_exec(
        "nsenter",
        f"--net={network_namespace}",
        *("ip", "-json", "link", "show", _CARD),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    if process.returncode:
        raise EngineError(f"Pod {pod.name} has no network: {errors.decode(errors='replace').strip()}.")
    return json.loads(output)[0]["link_index"]


def _interface_with(number: int) -> str | None:
    names = (path.name for path in _INTERFACES.iterdir())
    return next((name for name in names if _number_of(name) == number), None)


def _number_of(interface: str) -> int | None:
    try:
        return int((_INTERFACES / interface / "ifindex").read_text())
    except (OSError, ValueError):
        return None


def _filter(bridge: str) -> None:
    """Where the machine does not filter between the ports of all bridges, have it do so for this one."""
    if _FILTER_ALL.read_text().strip() == "0":
        (_INTERFACES / bridge / _FILTER_EACH_BRIDGE).write_text("1")
