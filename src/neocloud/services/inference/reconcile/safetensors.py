"""Reads headers of safetensors files: which tensors, how large, of what type. Never the tensors themselves.

A header is a length and a piece of JSON; nothing in it is executed. What does not add up is an error, since
an engine would find it only after minutes.
"""

import json
import math
import os
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

LARGEST_HEADER_BYTES = 100_000_000
DTYPES = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
}


class BadWeights(ValueError):
    """The message names the file and says what is wrong with it."""


@dataclass(frozen=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def parameters(self) -> int:
        return math.prod(self.shape)


def read_header(file: BinaryIO, name: str) -> tuple[Tensor, ...]:
    """Raises BadWeights; `name` is for its message."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 0 < length <= min(LARGEST_HEADER_BYTES, size - 8):
        raise BadWeights(f"{name} is no safetensors file, or is cut off; copy it again")
    text = file.read(length)
    try:
        header = json.loads(text)
        tensors = [_tensor(each, entry) for each, entry in header.items() if each != "__metadata__"]
        end = max(
            (entry["data_offsets"][1] for each, entry in header.items() if each != "__metadata__"), default=0
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise BadWeights(f"{name} has a header that cannot be read: {error}") from error
    if 8 + length + end > size:
        raise BadWeights(f"{name} is cut off: {size:,} bytes of {8 + length + end:,}; copy it again")
    return tuple(tensors)


def main_dtype(tensors: tuple[Tensor, ...]) -> str:
    """The type of most of the bytes."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.size_bytes
    most = max(sizes, key=lambda name: sizes[name], default="")
    return DTYPES.get(most, most.lower())


def _tensor(name: str, entry: Any) -> Tensor:
    first, last = entry["data_offsets"]
    shape = tuple(int(size) for size in entry["shape"])
    return Tensor(name, str(entry["dtype"]), shape, int(last) - int(first))
