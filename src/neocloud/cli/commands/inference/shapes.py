"""Default platform and preset of replicas: the smallest that holds the model.

The cloud decides what fits and what this machine has; shapes with a GPU are tried first.
"""

from collections.abc import Sequence
from typing import Any

from neocloud.cli.commands.inference.lookup import Place
from neocloud.client.errors import ClientError

LIST_PLATFORMS = "nebius.compute.v1.PlatformService/List"
GIB = 1024**3
ALLOWANCE_GIB = 3
"""Memory of the model server itself and of the keys and values of short requests."""
ANY_GPU, ANY_CPU = "gpu-local", "cpu-local"


def possible_shapes(place: Place, model: Any, platform: str, preset: str) -> Sequence[tuple[str, str]]:
    """Return the shapes to try, in order. Given names are passed on unchanged."""
    if platform and preset:
        return [(platform, preset)]
    found = list(place.client.list_all(LIST_PLATFORMS, {"parent_id": place.project}))
    platforms = [platform] if platform else [ANY_GPU, ANY_CPU]
    shapes = [_smallest(found, each, preset, model) for each in platforms]
    known = [shape for shape in shapes if shape is not None]
    if not known:
        names = ", ".join(item.metadata.name for item in found)
        raise ClientError(
            "INVALID_ARGUMENT",
            f"No such preset holds {model.metadata.name}, which needs"
            f" {model.status.size_bytes / GIB + ALLOWANCE_GIB:.0f} GiB or more",
            f"`neo compute platform list` shows the presets of {names}",
        )
    return known


def _smallest(found: Sequence[Any], platform: str, preset: str, model: Any) -> tuple[str, str] | None:
    needed = model.status.size_bytes / GIB + ALLOWANCE_GIB
    fitting = [
        (shape.resources.gpu_count, shape.resources.memory_gibibytes, -shape.resources.vcpu_count, shape.name)
        for item in found
        if item.metadata.name == platform
        for shape in item.spec.presets
        if preset in ("", shape.name) and shape.resources.memory_gibibytes >= needed
    ]
    return (platform, min(fitting)[3]) if fitting else None


def choose_shape(place: Place, model: Any, platform: str, preset: str) -> tuple[str, str]:
    """Return the first possible shape."""
    return possible_shapes(place, model, platform, preset)[0]
