"""The names by which Podman knows GPUs: devices of the Container Device Interface.

`nvidia-ctk cdi generate` names them by number, by UUID, or both. Its numbers are those of the moment: they do
not follow when a GPU is lost or passed to a virtual machine. So a GPU is found by its UUID or device file.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from neocloud.core.json_values import as_object
from neocloud.engines.base import Accelerator, EngineError
from neocloud.engines.manifest import GPU

FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
GENERATE = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
LABEL = "neocloud.gpus"
"""On containers: the keys of their GPUs; earlier releases wrote numbers."""
Json = Mapping[str, Any]
_GPU_FILE = re.compile(r"/dev/nvidia([0-9]+)")


@dataclass(frozen=True)
class Device:
    """A GPU of a container."""

    key: str
    """The key in the ledger."""
    name: str
    """The name in the Container Device Interface: "nvidia.com/gpu=0"."""


def has_specs(folders: Sequence[Path] = FOLDERS) -> bool:
    """Return whether there is a list of GPUs at all."""
    return any(list(folder.glob("*nvidia*")) for folder in folders)


def device_name(gpu: Accelerator, minor: int, folders: Sequence[Path] = FOLDERS) -> str:
    """Return the full name of the device: "nvidia.com/gpu=0". Raises EngineError where it has none."""
    devices = dict(_devices(folders))
    if gpu.uuid in devices:
        return f"{GPU}={gpu.uuid}"
    for name, files in devices.items():
        if files == {minor}:
            return f"{GPU}={name}"
    raise EngineError(
        f"Containers cannot get GPU {gpu.key}: it is in no list of {' or '.join(map(str, folders))}. "
        f"Run `{GENERATE}`."
    )


def _devices(folders: Sequence[Path]) -> Iterator[tuple[str, set[int]]]:
    """Yield the names of the devices with the numbers of their device files."""
    for folder in folders:
        for file in sorted(folder.glob("*nvidia*")):
            spec = _read(file)
            for device in spec.get("devices") or ():
                edits: Json = device.get("containerEdits") or {}
                nodes: Sequence[Json] = edits.get("deviceNodes") or ()
                paths = (str(node.get("hostPath") or node.get("path")) for node in nodes)
                numbers = {int(match[1]) for path in paths if (match := _GPU_FILE.fullmatch(path))}
                yield str(device.get("name")), numbers


def _read(file: Path) -> Json:
    try:
        spec: object = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError) as error:
        reason = str(error).partition("\n")[0]
        raise EngineError(f"{file} cannot be read ({reason}). Run `{GENERATE}`.") from error
    found = as_object(spec)
    return found if found.get("kind") == GPU else {}
