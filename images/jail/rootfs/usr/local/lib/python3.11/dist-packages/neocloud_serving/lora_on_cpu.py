"""Makes vLLM send tokens of one adapter through it together, and the slices of a layer as one.

vLLM's own way on a CPU copies the adapter's matrices for each token, for each slice of each layer. A batch
whose tokens all belong to one adapter goes through weights that have it in them, as far as they are merged; a
batch without an adapter through the base's alone. What is prepared here is kept until the adapter goes. What
it gains: docs/reference/measurements.md.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.platforms import current_platform

from neocloud_serving.adapters import Group, Product, add_share, groups_of, joined, matrix_of, merge
from neocloud_serving.merged import Key, MergedWeights

Linear = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
"""A product with a bias."""
MEMORY_VARIABLE = "NEOCLOUD_MERGED_WEIGHTS_MIB"
"""Memory for weights with adapters in them, beside all else; without it, nothing is merged."""

_groups: dict[int, list[Group]] = {}
"""Groups of the step under way, by the vLLM object that received it."""
_pairs: dict[Key, tuple[Product, Product]] = {}
"""Products by the address of a layer's first stack, and the adapter's place in it."""
_merged: MergedWeights[Linear] = MergedWeights(int(os.environ.get(MEMORY_VARIABLE) or "0") << 20)
_apply_general = BaseLinearLayerWithLoRA._apply_sync


def install() -> None:
    if not current_platform.is_cpu():
        return
    PunicaWrapperCPU.update_metadata = _and_then(PunicaWrapperCPU.update_metadata, _group)
    PunicaWrapperCPU.add_lora_linear = _add_lora_linear
    BaseLinearLayerWithLoRA._apply_sync = _apply
    for layer in set(_and_below(BaseLinearLayerWithLoRA)):
        for change in {"set_lora", "reset_lora"} & vars(layer).keys():
            setattr(layer, change, _and_then(getattr(layer, change), _forget))


def _apply(layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    groups = _groups.get(id(layer.punica_wrapper), ())
    if len(groups) == 1 and groups[0][1] is None:
        key = (layer.lora_a_stacked[0].data_ptr(), groups[0][0])
        size = layer.input_size * sum(layer.output_slices) * x.element_size()
        if linear := _merged.get(key, size, lambda: _merge(layer, groups[0][0], x.dtype)):
            return linear(x, bias)
    return _apply_general(layer, x, bias)


def _merge(layer: Any, place: int, dtype: torch.dtype) -> Linear | None:
    """Return None where the weights are not plain numbers: quantized, or not finite."""
    base, method = layer.base_layer, layer._get_quant_method()
    if type(method) is not UnquantizedLinearMethod:
        return None
    weight = matrix_of(lambda x: method.apply(base, x, None), layer.input_size, dtype)
    if not weight.isfinite().all():
        return None
    merge(weight, *joined(place, layer.lora_a_stacked, layer.lora_b_stacked, layer.output_slices))
    return _linear(weight)


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
            _pairs[key] = _product(first), _product(second * scale)
        add_share(output, inputs, rows, *_pairs[key])


def _product(matrix: torch.Tensor) -> Product:
    if not matrix.numel():
        return lambda x: x.new_zeros(x.shape[0], matrix.shape[0])
    linear = _linear(matrix)
    return lambda x: linear(x, None)


def _linear(matrix: torch.Tensor) -> Linear:
    """Return the product by vLLM's fastest kernel for this matrix, which keeps a packed copy of its own."""
    holder: Any = SimpleNamespace(weight=matrix)
    dispatch_cpu_unquantized_gemm(holder, remove_weight=True)
    linear, weight = holder.cpu_linear, holder.weight
    return lambda x, bias: linear(x, weight, bias)


def _group(wrapper: Any, *_: Any, **__: Any) -> None:
    groups = _groups[id(wrapper)] = groups_of(wrapper.token_lora_indices)
    _merged.use(place for place, _ in groups)


def _forget(layer: Any, index: int, *_: Any, **__: Any) -> None:
    key = (layer.lora_a_stacked[0].data_ptr(), index)
    _pairs.pop(key, None)
    _merged.forget(key)


def _and_then(function: Callable[..., Any], after: Callable[..., None]) -> Callable[..., Any]:
    def both(self: Any, *arguments: Any, **named: Any) -> Any:
        result = function(self, *arguments, **named)
        after(self, *arguments, **named)
        return result

    return both


def _and_below(kind: type) -> Iterator[type]:
    yield kind
    for child in kind.__subclasses__():
        yield from _and_below(child)
