"""Makes vLLM send tokens of one adapter through it together, and the slices of a layer as one.

vLLM's own way on a CPU copies the adapter's matrices for each token, for each slice of each layer. What
is joined here is kept until an adapter comes or goes. What it gains: docs/reference/measurements.md.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms import current_platform

from neocloud_serving.adapters import Group, add_share, groups_of, joined

Pair = tuple[torch.Tensor, torch.Tensor]

_groups: dict[int, list[Group]] = {}
"""Groups of the step under way, by the vLLM object that received it."""
_pairs: dict[tuple[int, int], Pair] = {}
"""Pairs by the address of a layer's first stack, and the adapter's place in it."""


def install() -> None:
    if not current_platform.is_cpu():
        return
    PunicaWrapperCPU.update_metadata = _and_then(PunicaWrapperCPU.update_metadata, _group)
    PunicaWrapperCPU.add_lora_linear = _add_lora_linear
    for layer in set(_and_below(BaseLinearLayerWithLoRA)):
        for change in {"set_lora", "reset_lora"} & vars(layer).keys():
            setattr(layer, change, _and_then(getattr(layer, change), _forget))


def _add_lora_linear(
    wrapper: Any,
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a_stacked: Sequence[torch.Tensor],
    lora_b_stacked: Sequence[torch.Tensor],
    scale: float,
    output_slices: Sequence[int],
    **_: Any,
) -> None:
    output, inputs = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
    for place, rows in _groups.get(id(wrapper), ()):
        key = (lora_a_stacked[0].data_ptr(), place)
        if key not in _pairs:
            first, second = joined(place, lora_a_stacked, lora_b_stacked, output_slices)
            _pairs[key] = first, second * scale
        add_share(output, inputs, rows, *_pairs[key])


def _group(wrapper: Any) -> None:
    _groups[id(wrapper)] = groups_of(wrapper.token_lora_indices)


def _forget(layer: Any) -> None:
    _pairs.clear()


def _and_then(function: Callable[..., Any], after: Callable[[Any], None]) -> Callable[..., Any]:
    def both(self: Any, *arguments: Any, **named: Any) -> Any:
        result = function(self, *arguments, **named)
        after(self)
        return result

    return both


def _and_below(kind: type) -> Iterator[type]:
    yield kind
    for child in kind.__subclasses__():
        yield from _and_below(child)
