"""AIS-13: what "auto" gives, and what is warned of; golden."""

import pytest
from neocloud.messages.neocloud.tuning.v1 import Hyperparameters

from neocloud.services.compute.public import Preset
from neocloud.services.tuning.rules.hyperparameters import (
    BaseSize,
    BatchSplit,
    DataSize,
    fill_in,
    split_batch,
    warnings,
)
from neocloud.services.tuning.rules.memory import Training, fit

TINY, EIGHT_B = BaseSize(1_152_384, 2048), BaseSize(8_190_735_360, 40_960)
BANK = DataSize(400, 189_378, 900)
LARGE = DataSize(100_000, 200_000_000, 30_000)


@pytest.mark.parametrize(
    ("data", "base", "rate", "context", "batch", "epochs"),
    [
        (BANK, TINY, 5e-3, 512, 4, 8),
        (BANK, EIGHT_B, 2e-4, 512, 4, 8),
        (LARGE, EIGHT_B, 2e-4, 4096, 32, 1),
        (DataSize(1, 60, 60), TINY, 5e-3, 256, 4, 8),
        (LARGE, BaseSize(600_000_000, 32_768), 2.6e-4, 4096, 32, 1),
    ],
)
def test_auto(data: DataSize, base: BaseSize, rate: float, context: int, batch: int, epochs: int) -> None:
    used = fill_in(Hyperparameters(), data, base)
    found = (used.learning_rate, used.context_length, used.batch_size, used.n_epochs)
    assert found == (rate, context, batch, epochs)
    assert (used.lora_r, used.lora_alpha, used.warmup_ratio, used.packing) == (16, 32, 0.03, True)


def test_what_was_asked_for_stays() -> None:
    asked = Hyperparameters(n_epochs=2, batch_size=3, lora_r=8, packing=False, learning_rate_multiplier=0.5)
    used = fill_in(asked, BANK, EIGHT_B)
    assert (used.n_epochs, used.batch_size, used.lora_r, used.lora_alpha) == (2, 3, 8, 16)
    assert used.learning_rate == 1e-4 and not used.packing


def test_the_published_rate_is_taken_and_warned_of() -> None:
    asked = Hyperparameters(learning_rate=1e-5, lora=True)
    used = fill_in(asked, BANK, EIGHT_B)
    assert used.learning_rate == 1e-5
    assert ["hardly changes" in text for text in warnings(asked, used)] == [True]
    assert not list(warnings(Hyperparameters(), fill_in(Hyperparameters(), BANK, TINY)))


def test_a_batch_is_split_evenly() -> None:
    assert split_batch(32, 8, 2) == BatchSplit(processes=8, passes=2, rows=2)
    assert split_batch(6, 1, 4) == BatchSplit(processes=1, passes=2, rows=3)
    assert split_batch(5, 2, 8).batch == 6


def test_memory_is_estimated_before_anything_starts() -> None:
    eight = Training(EIGHT_B.parameters, 147_456, 16, 2_700_000, 2048)
    on_h100 = fit(eight, Preset("gpu-local", "1gpu", 16, 200, gpus=1, gpu_memory_gib=80))
    assert on_h100.fits and on_h100.sentence.startswith("15.26 GiB of weights + 0.32 GiB for the adapter")
    assert not fit(eight, Preset("cpu-local", "8vcpu-32gb", 8, 32)).fits
    tiny = Training(TINY.parameters, 1024, 16, 19_456, 8 * 512)
    assert fit(tiny, Preset("cpu-local", "1vcpu-4gb", 1, 4)).fits
