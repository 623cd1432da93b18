"""Default platform and preset of workers."""

from collections.abc import Sequence
from typing import Any

from neocloud.cli.commands.slurm.lookup import Place
from neocloud.client.errors import ClientError

LIST_PLATFORMS = "nebius.compute.v1.PlatformService/List"


def choose_shape(place: Place, platform: str, preset: str) -> tuple[str, str]:
    """Return platform and preset; a missing one defaults to the smallest preset, without GPUs if possible.

    Given names are passed on unchanged: the cloud validates them.
    """
    if platform and preset:
        return platform, preset
    found = list(place.client.list_all(LIST_PLATFORMS, {"parent_id": place.project}))
    candidates = [
        (shape.resources.gpu_count, shape.resources.vcpu_count, shape.resources.memory_gibibytes, item, shape)
        for item in found
        for shape in item.spec.presets
        if (not platform or item.metadata.name == platform) and (not preset or shape.name == preset)
    ]
    if not candidates:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"No platform here has a preset {preset!r}" if preset else f"There is no platform {platform!r}",
            f"`neo compute platform list` lists them: {', '.join(_names(found))}",
        )
    smallest = min(candidates, key=lambda candidate: candidate[:3])
    return smallest[3].metadata.name, smallest[4].name


def _names(platforms: Sequence[Any]) -> list[str]:
    return [item.metadata.name for item in platforms]
