"""Compute a layer with LoRA in four products and no copies, in place of the general layer of `peft`.

The weights, their names and the files stay those of `peft`; only the computation differs. The base's weight
is frozen, so that nothing is computed for its gradient, and scale and sum are part of the products. A layer
that is more than a frozen matrix and two LoRA matrices (4-bit weights, dropout, DoRA) stays as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import Linear
from torch.autograd.function import once_differentiable


def simplify(model: Any) -> None:
    """Replace the computation of each layer that has nothing but LoRA."""
    for layer in model.modules():
        if type(layer) is Linear and _is_plain(layer):
            layer.__class__ = PlainLora


def _is_plain(layer: Linear) -> bool:
    base, names = layer.get_base_layer(), layer.active_adapters
    return (
        type(base) is torch.nn.Linear
        and not base.weight.requires_grad
        and len(names) == 1
        and list(layer.lora_A) == names
        and isinstance(layer.lora_dropout[names[0]], torch.nn.Identity)
        and not layer.lora_variant
        and not layer.lora_bias[names[0]]
        and not layer.fan_in_fan_out
    )


class PlainLora(Linear):
    """A layer of `peft` that computes with `LoraProduct`."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args or kwargs or self.disable_adapters or self.merged:
            return super().forward(x, *args, **kwargs)
        base: Any = self.get_base_layer()
        name = self.active_adapters[0]
        return LoraProduct.apply(
            x.to(base.weight.dtype), base.weight, base.bias,
            self.lora_A[name].weight, self.lora_B[name].weight, self.scaling[name],
        )  # fmt: skip


class LoraProduct(torch.autograd.Function):
    """`x W' + bias + scale * x A' B'`, with gradients for x, A and B.

    Everything is computed in the type of x and W; the gradients of A and B have the type of A and B.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
        down: torch.Tensor, up: torch.Tensor, scale: float,
    ) -> torch.Tensor:  # fmt: skip
        rows = x.reshape(-1, x.shape[-1])
        down, up = down.to(x.dtype), up.to(x.dtype)
        low = rows @ down.t()
        result = rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())
        result.addmm_(low, up.t(), alpha=scale)
        ctx.save_for_backward(rows, low, weight, down, up)
        ctx.scale, ctx.shape = scale, x.shape
        return result.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows, low, weight, down, up = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, weight.shape[0])
        of_low = (gradient @ up).mul_(ctx.scale)
        of_down = of_low.t() @ rows
        of_up = (gradient.t() @ low).mul_(ctx.scale)
        of_x = None
        if ctx.needs_input_grad[0]:  # not in the first layer, above frozen embeddings
            of_x = (gradient @ weight).addmm_(of_low, down).view(ctx.shape)
        return of_x, None, None, of_down, of_up, None
