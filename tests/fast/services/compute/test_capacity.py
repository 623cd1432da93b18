import pytest

from neocloud.core.contract import ApiError, Code
from neocloud.engines.base import Accelerator, Capabilities
from neocloud.services.compute.public import check_fits, preset

LAPTOP = Capabilities("fake", "1", cpus=2, memory_mib=24 * 1024)


def gpu_server(model: str, count: int) -> Capabilities:
    gpus = tuple(Accelerator("nvidia", model, 46068, index) for index in range(count))
    return Capabilities("fake", "1", cpus=192, memory_mib=1536 * 1024, accelerators=gpus)


def refusal(capabilities: Capabilities, *demands) -> str:
    with pytest.raises(ApiError) as caught:
        check_fits(capabilities, demands)
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    (detail,) = caught.value.details
    assert detail.retry_type == type(detail).RetryType.Value("NOTHING")
    return caught.value.message


def test_what_fits_is_taken() -> None:
    check_fits(LAPTOP, [(preset("cpu-local", "1vcpu-8gb"), 3)])
    check_fits(gpu_server("NVIDIA L40S", 4), [(preset("gpu-l40s-d", "2gpu-64vcpu-384gb"), 2)])


def test_too_little_memory_is_refused_with_the_sum() -> None:
    message = refusal(LAPTOP, (preset("cpu-local", "1vcpu-8gb"), 3), (preset("cpu-local", "1vcpu-1gb"), 1))
    assert "3 x 8 + 1 x 1 = 25 GiB of memory, 24 GiB are available" in message


def test_cores_of_the_local_platform_are_shared_four_ways() -> None:
    check_fits(LAPTOP, [(preset("cpu-local", "4vcpu-8gb"), 2)])
    message = refusal(LAPTOP, (preset("cpu-local", "1vcpu-1gb"), 9))
    shared = "(4 vCPU of cpu-local share a core)"
    assert f"9 x 1 = 9 vCPU need 2.25 cores {shared}, 2 are available" in message


def test_cores_of_published_platforms_are_not_shared() -> None:
    assert "1 x 4 = 4 vCPU need 4 cores, 2 are available" in refusal(
        LAPTOP, (preset("cpu-d3", "4vcpu-16gb"), 1)
    )


def test_a_gpu_of_another_type_does_not_count() -> None:
    server = gpu_server("NVIDIA H100 80GB HBM3", 8)
    message = refusal(server, (preset("gpu-l40s-a", "1gpu-8vcpu-32gb"), 1))
    assert "1 GPUs of type l40s, 0 are available" in message


def test_gpus_of_any_type_and_of_one_type_are_not_given_twice() -> None:
    server = gpu_server("NVIDIA L40S", 2)
    named, any_type = preset("gpu-l40s-a", "1gpu-8vcpu-32gb"), preset("gpu-local", "1gpu-2vcpu-8gb")
    check_fits(server, [(named, 1), (any_type, 1)])
    assert "3 GPUs in total, 2 are available" in refusal(server, (named, 1), (any_type, 2))


def test_an_unknown_machine_is_left_to_the_engine() -> None:
    check_fits(None, [(preset("gpu-h200-sxm", "8gpu-128vcpu-1600gb"), 1000)])
