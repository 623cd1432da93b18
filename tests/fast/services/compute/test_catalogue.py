"""The platform catalogue: CMP-03, CMP-04, CMP-05."""

import pytest

from neocloud.services.compute.public import platforms, preset, preset_violations


@pytest.mark.parametrize(
    ("platform", "name", "gpu_memory", "memory", "vcpu"),
    [
        ("gpu-h200-sxm", "1gpu-16vcpu-200gb", 141, 200, 16),
        ("gpu-h200-sxm", "8gpu-128vcpu-1600gb", 8 * 141, 1600, 128),
        ("gpu-h100-sxm", "1gpu-16vcpu-200gb", 80, 200, 16),
        ("gpu-h100-sxm", "8gpu-128vcpu-1600gb", 8 * 80, 1600, 128),
        ("gpu-l40s-a", "1gpu-8vcpu-32gb", 48, 32, 8),
    ],
)
def test_published_gpu_shapes_are_offered(platform, name, gpu_memory, memory, vcpu) -> None:
    """CMP-04."""
    found = preset(platform, name)
    assert (found.gpus * found.gpu_memory_gib, found.memory_gib, found.vcpu) == (gpu_memory, memory, vcpu)


@pytest.mark.parametrize(
    ("platform", "name"),
    [("gpu-l40s-d", "2gpu-64vcpu-384gb"), ("cpu-d3", "8vcpu-32gb"), ("cpu-d3", "4vcpu-16gb")],
)
def test_shapes_of_the_fine_tuning_solution_are_offered(platform: str, name: str) -> None:
    """CMP-05."""
    assert preset(platform, name).name == name


def test_a_node_is_charged_by_its_parts_or_by_its_gpu() -> None:
    split = preset("gpu-l40s-d", "2gpu-64vcpu-384gb").skus()
    assert split == {"gpu-l40s-d.gpu": 2, "gpu-l40s-d.vcpu": 64, "gpu-l40s-d.ram": 384}
    assert preset("gpu-h100-sxm", "8gpu-128vcpu-1600gb").skus() == {"gpu-h100-sxm.gpu": 8}
    assert preset("cpu-local", "1vcpu-4gb").skus() == {"cpu-local.vcpu": 1, "cpu-local.ram": 4}


def test_an_unknown_platform_is_refused_with_those_there_are() -> None:
    (violation,) = preset_violations("gpu-b300", "1gpu", "spec.node_sets[0]")
    assert violation.field == "spec.node_sets[0].platform"
    assert all(name in violation.message for name in platforms())


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    (violation,) = preset_violations("cpu-d3", "3vcpu-7gb", "spec.node_sets[0]")
    assert violation.field == "spec.node_sets[0].preset"
    assert "4vcpu-16gb" in violation.message
    with pytest.raises(
        LookupError, match=r'preset "3vcpu-7gb" is not a preset of cpu-d3; choose from: 4vcpu-16gb'
    ):
        preset("cpu-d3", "3vcpu-7gb")


def test_platform_names_are_such_that_schedulers_can_read_them() -> None:
    """Clients take "cpu" or "gpu-<accelerator>-" from the front of the name and split it at "_"."""
    for name in platforms():
        assert name.split("-")[0] in {"cpu", "gpu"}
        assert "_" not in name
