"""The share of LoRA adapters in a layer's output, on a CPU. Plain torch; knows nothing of vLLM."""

from collections.abc import Callable, Sequence

import torch

Group = tuple[int, torch.Tensor | None]
"""An adapter's place in the stacks, and the rows of its tokens; None: all of them."""
Product = Callable[[torch.Tensor], torch.Tensor]
"""Multiplies (tokens, in) by a matrix (out, in): (tokens, out)."""
MERGED_ROWS = 1024
"""So many rows are merged at a time, in 32 bits."""


def groups_of(places: torch.Tensor) -> list[Group]:
    """Group the tokens by their adapter's place, -1 for none: shape (tokens,)."""
    found = places.unique().tolist()
    if len(found) == 1:
        return [(found[0], None)] if found[0] >= 0 else []
    return [(place, (places == place).nonzero().squeeze(1)) for place in found if place >= 0]


def joined(
    place: int, down: Sequence[torch.Tensor], up: Sequence[torch.Tensor], widths: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """One pair of matrices for all slices of a layer (q, k and v are one layer of three).

    `down` are stacks of shape (places, 1, rank, in), `up` (places, 1, width, rank). Ranks that the adapter
    leaves empty, up to the highest that the engine takes, are left out.
    """
    first = torch.cat([stack[place, 0] for stack in down])
    second = torch.block_diag(*(stack[place, 0, :width] for stack, width in zip(up, widths, strict=True)))
    used = first.abs().sum(1) > 0
    return first[used].contiguous(), second[:, used].contiguous()


def add_share(
    output: torch.Tensor, inputs: torch.Tensor, rows: torch.Tensor | None, first: Product, second: Product
) -> None:
    """In place: output (tokens, width) of these rows grows by inputs (tokens, in) through both matrices."""
    share = second(first(inputs if rows is None else inputs[rows]))
    if rows is None:
        output[:, : share.shape[1]] += share
    else:
        output[rows, : share.shape[1]] += share


def matrix_of(product: Product, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the matrix of a product whose own copy is packed: what it makes of the unit vectors, exactly."""
    return product(torch.eye(width, dtype=dtype)).t().contiguous()


def merge(weight: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
    """In place: the weight (out, in) grows by the adapter's share."""
    for start in range(0, second.shape[0], MERGED_ROWS):
        rows = slice(start, min(start + MERGED_ROWS, second.shape[0]))
        weight[rows] = (weight[rows].float() + second[rows].float() @ first.float()).to(weight.dtype)
