"""Adapters in the shared root compute the same as an adapter applied token by token."""

import importlib.util
from functools import partial

import pytest
import torch
from torch.nn.functional import linear

from tests import ROOT

PLUGIN = "images/jail/rootfs/usr/local/lib/python3.11/dist-packages/neocloud_serving/adapters.py"
PLACES, RANK, IN, WIDTHS = 3, 8, 12, (10, 6, 6)


@pytest.fixture(scope="module")
def adapters():
    path = ROOT / PLUGIN
    spec = importlib.util.spec_from_file_location("neocloud_serving_adapters", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def stacks() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Adapters of a lower rank than the engine takes: the rest of their rows is zero."""
    torch.manual_seed(7)
    down = [torch.randn(PLACES, 1, RANK, IN, dtype=torch.float64) for _ in WIDTHS]
    up = [torch.randn(PLACES, 1, width, RANK, dtype=torch.float64) for width in WIDTHS]
    for stack in down:
        stack[:, :, RANK // 2 :] = 0
    for stack in up:
        stack[..., RANK // 2 :] = 0
    return down, up


def token_by_token(places: list[int], inputs: torch.Tensor, down, up) -> torch.Tensor:
    output = torch.zeros(len(places), sum(WIDTHS), dtype=torch.float64)
    for token, place in enumerate(places):
        if place >= 0:
            parts = [b[place, 0] @ (a[place, 0] @ inputs[token]) for a, b in zip(down, up, strict=True)]
            output[token] = torch.cat(parts)
    return output


@pytest.mark.parametrize("places", [[0, 0, 0, 0], [-1, -1], [1, -1, 2, 1, 0], [2], [-1, 1]])
def test_tokens_that_go_together_get_what_each_would_alone(adapters, stacks, places: list[int]) -> None:
    down, up = stacks
    inputs = torch.randn(len(places), IN, dtype=torch.float64)
    output = torch.zeros(len(places), sum(WIDTHS), dtype=torch.float64)
    for place, rows in adapters.groups_of(torch.tensor(places)):
        first, second = (partial(linear, weight=each) for each in adapters.joined(place, down, up, WIDTHS))
        adapters.add_share(output, inputs, rows, first, second)
    torch.testing.assert_close(output, token_by_token(places, inputs, down, up))


def test_empty_ranks_cost_nothing(adapters, stacks) -> None:
    first, second = adapters.joined(1, *stacks, WIDTHS)
    assert first.shape == (len(WIDTHS) * RANK // 2, IN)
    assert second.shape == (sum(WIDTHS), len(WIDTHS) * RANK // 2)
