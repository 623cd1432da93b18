"""The catalogue of platforms and presets, read once from catalogue.yaml. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from neocloud.core.kind import Violation

ANY_GPU = "any"
PREEMPTIBLE = ".preemptible"
"""The suffix of the SKUs of preemptible machines."""
_PRESET_NAME = re.compile(r"(?:(?P<gpus>\d+)gpu-)?(?P<vcpu>\d+)vcpu-(?P<memory>\d+)gb")


@dataclass(frozen=True)
class Preset:
    """The size of one node."""

    platform: str
    name: str
    vcpu: int
    memory_gib: int
    gpus: int = 0
    gpu_type: str = ""
    """Lower case, e.g. "l40s"; "" without GPUs and where any type fits."""
    gpu_memory_gib: int = 0
    """The published memory of one GPU."""
    vcpu_per_core: int = 1
    is_billed_per_gpu: bool = False

    @property
    def memory_mib(self) -> int:
        return self.memory_gib * 1024

    def skus(self, *, is_preemptible: bool = False) -> dict[str, int]:
        """Return the units by SKU that one node is charged as. Preemptible nodes have their own SKUs."""
        parts = {"gpu": self.gpus}
        if not self.is_billed_per_gpu:
            parts |= {"vcpu": self.vcpu, "ram": self.memory_gib}
        end = PREEMPTIBLE if is_preemptible else ""
        return {f"{self.platform}.{part}{end}": units for part, units in parts.items() if units}


@dataclass(frozen=True)
class Platform:
    name: str
    title: str
    presets: Mapping[str, Preset]
    gpu_memory_gb: int = 0
    clustering_presets: frozenset[str] = frozenset()


@cache
def platforms() -> Mapping[str, Platform]:
    """Return all platforms by name, in the order of the catalogue."""
    text = files("neocloud.services.compute").joinpath("catalogue.yaml").read_text(encoding="utf-8")
    return {entry["name"]: _platform(entry) for entry in yaml.safe_load(text)}


def preset(platform: str, name: str) -> Preset:
    """Return a preset. Raises LookupError with the known names if there is none."""
    for violation in preset_violations(platform, name, ""):
        raise LookupError(f"{violation.field.lstrip('.')} {violation.message}")
    return platforms()[platform].presets[name]


def preset_violations(platform: str, name: str, field: str) -> Iterable[Violation]:
    """Return what is wrong with the platform and preset that a request names in `field`."""
    found = platforms().get(platform)
    if found is None:
        known = ", ".join(platforms())
        yield Violation(f"{field}.platform", f'"{platform}" is not a platform; choose from: {known}')
    elif name not in found.presets:
        known = ", ".join(found.presets)
        yield Violation(f"{field}.preset", f'"{name}" is not a preset of {platform}; choose from: {known}')


def _platform(entry: Mapping[str, Any]) -> Platform:
    presets = [_preset(entry, name) for name in entry["presets"]]
    return Platform(
        name=entry["name"],
        title=entry["title"],
        presets={preset.name: preset for preset in presets},
        gpu_memory_gb=entry.get("gpu_memory_gb", 0),
        clustering_presets=frozenset(entry.get("clustering", ())),
    )


def _preset(entry: Mapping[str, Any], name: str) -> Preset:
    match = _PRESET_NAME.fullmatch(name)
    if match is None:
        raise ValueError(
            f"{name!r} of {entry['name']} is not a preset name; write 2gpu-64vcpu-384gb or 4vcpu-16gb"
        )
    gpu = entry.get("gpu", "")
    return Preset(
        platform=entry["name"],
        name=name,
        vcpu=int(match["vcpu"]),
        memory_gib=int(match["memory"]),
        gpus=int(match["gpus"] or 0),
        gpu_type="" if gpu == ANY_GPU else gpu,
        gpu_memory_gib=entry.get("gpu_memory_gb", 0),
        vcpu_per_core=entry.get("vcpu_per_core", 1),
        is_billed_per_gpu=entry.get("billed_per") == "gpu",
    )
