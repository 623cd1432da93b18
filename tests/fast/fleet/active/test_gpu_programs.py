"""The programs for GPUs: what they compare is right, and a device that computes wrong is found out.

The arithmetic runs on the CPU here. Where there is a GPU, the programs run on it as well.
"""

import math
from collections.abc import Iterator

import pytest
import torch

from neocloud.fleet.active import corruption, gpu, training

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
SIDE = 256
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="There is no GPU that CUDA can use")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other are slow on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def golden(side: int) -> str:
    """Return the digest of the product in fp64, which holds every sum exactly."""
    a, b = corruption.factors(side)
    return corruption.digest((a.double() @ b.double()).float())


def test_the_known_product_is_that_of_exact_arithmetic() -> None:
    assert golden(corruption.SIDE) == corruption.GOLDEN


def test_no_sum_of_the_product_needs_more_than_the_24_bits_of_fp32() -> None:
    a, b = corruption.factors(corruption.SIDE)
    assert int(a.abs().max()) * int(b.abs().max()) * corruption.SIDE < 2**24
    assert torch.equal(a.bfloat16().long(), a)


def test_sound_arithmetic_has_no_wrong_round() -> None:
    found = corruption.search(CPU, 0.2, side=SIDE, golden=golden(SIDE))
    assert found.wrong == 0
    assert found.rounds >= 2


@pytest.mark.parametrize("broken_round", [0, 1])
@pytest.mark.parametrize("bit", [0, 22, 31])
def test_one_flipped_bit_is_one_wrong_round(broken_round: int, bit: int) -> None:
    def flip(number: int, product: torch.Tensor) -> None:
        if number == broken_round:
            bits = product.view(torch.int32)
            bits[17, 33] ^= torch.tensor(-(2**31) if bit == 31 else 1 << bit, dtype=torch.int32)

    found = corruption.search(CPU, 0, side=SIDE, golden=golden(SIDE), tamper=flip)
    assert found.wrong == 1


def test_a_device_that_is_always_wrong_has_no_right_round() -> None:
    def spoil(_: int, product: torch.Tensor) -> None:
        product.add_(1)

    found = corruption.search(CPU, 0, side=SIDE, golden=golden(SIDE), tamper=spoil)
    assert found.wrong == found.rounds


def test_the_training_gives_the_known_loss_and_the_same_bits_twice() -> None:
    first, second = (training.train(CPU, training.SMALL).losses for _ in range(2))
    assert first == second
    apart, _ = training.deviation(first, training.golden(training.SMALL))
    assert apart < 0.001
    assert first[-1] < 2 < first[0]


def test_a_training_on_a_device_with_a_wrong_function_departs_from_the_known_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = torch.nn.functional.gelu
    monkeypatch.setattr(
        torch.nn.functional, "gelu", lambda x: right(x) + (x > 2) * 3.0 + (x < -2) * 3.0 + 0.2
    )
    losses = training.train(CPU, training.SMALL).losses
    apart, _ = training.deviation(losses, training.golden(training.SMALL))
    assert apart > 0.02


def test_a_loss_that_is_no_number_counts_as_infinitely_far() -> None:
    assert training.deviation([1.0, math.nan, 1.0], [1.0, 1.0, 1.0]) == (math.inf, 1)


def test_curves_of_other_lengths_are_not_compared() -> None:
    with pytest.raises(ValueError, match="3 steps cannot be compared with 2"):
        training.deviation([1.0] * 3, [1.0] * 2)


def test_a_name_that_is_no_check_is_refused() -> None:
    with pytest.raises(KeyError):
        gpu.measure("gpu_unknown")


@needs_gpu
@pytest.mark.parametrize("name", sorted(gpu.CHECKS))
def test_each_program_runs_on_the_gpu(name: str) -> None:
    found = gpu.measure(name)
    assert len(found) == torch.cuda.device_count()
    for each in found:
        assert each.value == 0 if name in ("gpu_sdc", "gpu_repeat") else each.value > 0
