"""Weights with an adapter in them: the same answers, within the memory and the time that they may take."""

import importlib.util
from types import ModuleType
from typing import Any

import pytest
import torch

from tests import ROOT

INSTALLED = ROOT / "images/jail/rootfs/usr/local/lib/python3.11/dist-packages/neocloud_serving"
PLACES, RANK, IN, WIDTHS = 3, 8, 12, (10, 6, 6)
SIZE = 100


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"neocloud_serving_{name}", INSTALLED / f"{name}.py")
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def adapters() -> Any:
    return module("adapters")


class Weights:
    """MergedWeights with a clock, and layers that take so long to merge."""

    def __init__(self, most_bytes: int, seconds: float = 0.0) -> None:
        self.now = 0.0
        self._seconds = seconds
        self.merged = module("merged").MergedWeights(most_bytes, lambda: self.now)

    def ask(self, layer: int, place: int) -> str | None:
        self.merged.use([place])

        def make() -> str:
            self.now += self._seconds
            return f"{layer} with {place}"

        return self.merged.get((layer, place), SIZE, make)


@pytest.mark.parametrize("rows", [1, 5, 1024])
def test_a_merged_weight_gives_what_base_and_adapter_give(
    adapters: Any, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(adapters, "MERGED_ROWS", rows)
    torch.manual_seed(7)
    down = [torch.randn(PLACES, 1, RANK, IN) for _ in WIDTHS]
    up = [torch.randn(PLACES, 1, width, RANK) for width in WIDTHS]
    base, inputs = torch.randn(sum(WIDTHS) + 3, IN), torch.randn(4, IN)
    weight = base.clone()
    for place in range(PLACES):
        first, second = adapters.joined(place, down, up, WIDTHS)
        expected = inputs @ base.T
        adapters.add_share(expected, inputs, None, lambda x, a=first: x @ a.T, lambda x, b=second: x @ b.T)
        weight.copy_(base)
        adapters.merge(weight, first, second)
        torch.testing.assert_close(inputs @ weight.T, expected)
    assert torch.equal(weight[-3:], base[-3:])  # rows beyond the adapter's stay the base's


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_packed_weight_is_found_again_to_the_bit(adapters: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(7)
    weight = torch.randn(33, IN).to(dtype)
    found = adapters.matrix_of(lambda x: torch.nn.functional.linear(x, weight), IN, dtype)
    assert torch.equal(found, weight) and found.is_contiguous()


def test_without_memory_nothing_is_merged() -> None:
    weights = Weights(0)
    assert weights.ask(1, 0) is None and weights.merged.bytes == 0


def test_a_layer_is_merged_once_and_the_memory_is_not_exceeded() -> None:
    weights = Weights(3 * SIZE)
    assert [weights.ask(layer, 0) for layer in (1, 2, 1)] == ["1 with 0", "2 with 0", "1 with 0"]
    assert weights.ask(3, 0) is None and weights.ask(1, 1) is None  # merging takes the size twice
    assert weights.merged.bytes == 2 * SIZE


def test_a_removed_adapter_gives_its_memory_back() -> None:
    weights = Weights(2 * SIZE)
    weights.ask(1, 0)
    weights.merged.forget((1, 0))
    weights.merged.forget((1, 0))
    assert weights.merged.bytes == 0 and weights.ask(1, 1) == "1 with 1"


def test_an_adapter_that_rests_makes_room_and_one_in_use_does_not() -> None:
    weights = Weights(2 * SIZE)
    weights.ask(1, 0)
    weights.now += 59
    assert weights.ask(1, 1) is None
    weights.now += 70
    weights.ask(1, 0)
    assert weights.ask(1, 1) is None  # it was used just now
    weights.now += 61
    assert weights.ask(1, 1) == "1 with 1" and weights.merged.bytes == SIZE


def test_one_of_a_batch_in_progress_does_not_rest_however_long_it_takes() -> None:
    weights = Weights(2 * SIZE)
    weights.ask(1, 0)
    weights.now += 1000
    weights.merged.use([0, 1])
    assert weights.merged.get((1, 1), SIZE, lambda: "merged") is None


def test_merging_leaves_three_quarters_of_the_time_to_answers() -> None:
    weights = Weights(100 * SIZE, seconds=1.0)
    assert weights.ask(1, 0) == "1 with 0"
    assert weights.ask(2, 0) is None
    weights.now += 2.9
    assert weights.ask(2, 0) is None and weights.ask(1, 0) == "1 with 0"
    weights.now += 0.2
    assert weights.ask(2, 0) == "2 with 0"


def test_what_cannot_be_merged_takes_no_memory() -> None:
    weights = Weights(100 * SIZE)
    weights.merged.use([0])
    assert weights.merged.get((1, 0), SIZE, lambda: None) is None and weights.merged.bytes == 0
