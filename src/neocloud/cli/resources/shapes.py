"""Platforms and presets, the shapes of machines: the default for workers and replicas.

The cloud decides what fits and what this machine has; given names are passed on unchanged.
"""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeVar

from neocloud.cli.output import JsonObject
from neocloud.cli.resources.lookup import ProjectClient, closest_names
from neocloud.client.errors import ClientError

if TYPE_CHECKING:
    from neocloud.messages.nebius.compute.v1 import Platform
    from neocloud.messages.neocloud.inference.v1 import Model


Answer = TypeVar("Answer")
LIST_PLATFORMS = "nebius.compute.v1.PlatformService/List"
GIB = 1024**3
ALLOWANCE_GIB = 3
"""Memory of the model server itself and of the keys and values of short requests."""
WORKER_GIB = 4
"""Memory of a worker whose shape nobody named: PyTorch and a small training fit."""
ANY_GPU, ANY_CPU = "gpu-local", "cpu-local"


def possible_shapes(
    cloud: ProjectClient, model: "Model", platform: str, preset: str
) -> Sequence[tuple[str, str]]:
    """Return the shapes to try, in order. Given names are passed on unchanged."""
    if platform and preset:
        return [(platform, preset)]
    found = list(cloud.client.list_all(LIST_PLATFORMS, {"parent_id": cloud.project}))
    platforms = [platform] if platform else [ANY_GPU, ANY_CPU]
    shapes = [_smallest(found, each, preset, model) for each in platforms]
    known = [shape for shape in shapes if shape is not None]
    if not known:
        raise _too_small(found, model, platform, preset)
    return known


def _too_small(found: Sequence["Platform"], model: "Model", platform: str, preset: str) -> ClientError:
    """Return why no preset does, with the smallest one that does: "Smallest that fits: 1vcpu-4gb"."""
    names = {item.metadata.name for item in found}
    if platform and platform not in names:
        step = f"{closest_names(platform, names)}. `neo compute platform list` lists all"
        return ClientError("INVALID_ARGUMENT", f"There is no platform {platform!r}", step)
    needed = f"{model.metadata.name} needs {model.status.size_bytes / GIB + ALLOWANCE_GIB:.0f} GiB"
    platforms = [platform] if platform else [ANY_GPU, ANY_CPU]
    sizes = {
        shape.resources.memory_gibibytes
        for item in found
        if item.metadata.name in platforms
        for shape in item.spec.presets
        if shape.name == preset
    }
    has = f"{preset} has {min(sizes)} GiB; " if sizes else ""
    fitting = [shape for each in platforms if (shape := _smallest(found, each, "", model)) is not None]
    hint = " or ".join(f"--platform {name} --preset {each}" for name, each in fitting)
    return ClientError(
        "INVALID_ARGUMENT",
        f"{has}{needed}" if sizes or not preset else f"{needed}, and there is no preset {preset!r} here",
        f"Smallest that fits: {hint}; `neo capacity` lists all"
        if hint
        else "`neo capacity` lists the presets",
    )


def _smallest(
    found: Sequence["Platform"], platform: str, preset: str, model: "Model"
) -> tuple[str, str] | None:
    needed = model.status.size_bytes / GIB + ALLOWANCE_GIB
    fitting = [
        (shape.resources.gpu_count, shape.resources.memory_gibibytes, -shape.resources.vcpu_count, shape.name)
        for item in found
        if item.metadata.name == platform
        for shape in item.spec.presets
        if preset in ("", shape.name) and shape.resources.memory_gibibytes >= needed
    ]
    return (platform, min(fitting)[3]) if fitting else None


def with_first(
    shapes: Sequence[tuple[str, str]],
    attempt: Callable[[JsonObject], Answer],
    not_here: Collection[str] = ("RESOURCE_EXHAUSTED",),
) -> tuple[Answer, int]:
    """Return the answer for the first shape that is possible, given as fields of a spec, and its number.

    Errors of the codes `not_here` mean that a shape is not; that of the last one is raised.
    """
    for number, (platform, preset) in enumerate(shapes):
        try:
            return attempt({"platform": platform, "preset": preset}), number
        except ClientError as error:
            if error.code not in not_here or number == len(shapes) - 1:
                raise
    raise AssertionError("There is at least one shape.")


def first_possible_shape(cloud: ProjectClient, model: "Model", platform: str, preset: str) -> tuple[str, str]:
    """Return the first possible shape."""
    return possible_shapes(cloud, model, platform, preset)[0]


def smallest_shape(cloud: ProjectClient, platform: str, preset: str) -> tuple[str, str]:
    """Return platform and preset; a missing one defaults to the smallest preset, without GPUs if possible.

    Given names are passed on unchanged: the cloud validates them.
    """
    if platform and preset:
        return platform, preset
    found = list(cloud.client.list_all(LIST_PLATFORMS, {"parent_id": cloud.project}))
    return _smallest_of(found, platform, preset)


def worker_shapes(cloud: ProjectClient, platform: str, preset: str) -> Sequence[tuple[str, str]]:
    """Return the shapes of workers to try, in order: where nothing is named, one with a GPU first.

    A missing name defaults to the smallest preset of `WORKER_GIB`, and where the machine does not have that,
    to the smallest of all. Given names are passed on unchanged.
    """
    if platform and preset:
        return [(platform, preset)]
    found = list(cloud.client.list_all(LIST_PLATFORMS, {"parent_id": cloud.project}))
    has_local_gpus = any(item.metadata.name == ANY_GPU for item in found)
    with_gpu = [] if platform or preset or not has_local_gpus else [_smallest_of(found, ANY_GPU, "")]
    without = [_smallest_of(found, platform, preset, gib) for gib in (WORKER_GIB, 0)]
    return list(dict.fromkeys([*with_gpu, *without]))


def _smallest_of(
    found: Sequence["Platform"], platform: str, preset: str, wanted_gib: int = 0
) -> tuple[str, str]:
    """Return the smallest preset, without GPUs and with the wanted memory if possible.

    Raises ClientError when there is none.
    """
    candidates = [
        (
            shape.resources.gpu_count,
            shape.resources.memory_gibibytes < wanted_gib,
            shape.resources.vcpu_count,
            shape.resources.memory_gibibytes,
            item,
            shape,
        )
        for item in found
        for shape in item.spec.presets
        if (not platform or item.metadata.name == platform) and (not preset or shape.name == preset)
    ]
    if not candidates:
        known = {shape.name for item in found for shape in item.spec.presets}
        if not preset:
            known = {item.metadata.name for item in found}
        raise ClientError(
            "INVALID_ARGUMENT",
            f"No platform here has a preset {preset!r}" if preset else f"There is no platform {platform!r}",
            f"{closest_names(preset or platform, known)}. `neo compute platform list` lists all",
        )
    *_, item, shape = min(candidates, key=lambda candidate: candidate[:4])
    return item.metadata.name, shape.name
