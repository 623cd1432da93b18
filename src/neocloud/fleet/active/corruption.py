"""Look for silent corruption: matrix products of whole numbers, and memory that is read back.

The factors are whole numbers from -8 to 7, which bf16 holds exactly, and every partial sum stays below 2^24,
which fp32 holds exactly. So the order of the sums does not matter, and the result has one right value on
every processor, GPU model and library: `GOLDEN`. That of the device is compared bit by bit.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

SIDE = 4096
GOLDEN = "20c6f29c510871ef4b67d1df9d36a41303a931b7c37a59aab5336454b12440d9"
"""SHA-256 of the product as little-endian fp32, row by row; a test computes it again with fp64 on a CPU."""
_STEP = 6364136223846793005
_SIGN = (1 << 63) - 1


@dataclass(frozen=True)
class CorruptionResult:
    wrong: int
    """Results that were not right; a result is a whole product or a whole block of memory."""
    rounds: int
    note: str


def factors(side: int = SIDE) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two square matrices of whole numbers from -8 to 7 as int64, made on the CPU by a rule."""
    numbers = torch.arange(2 * side * side, dtype=torch.int64)
    mixed = numbers * _STEP + 1442695040888963407
    mixed = (mixed ^ ((mixed & _SIGN) >> 29)) * _STEP
    values = ((mixed & _SIGN) >> 33) % 16 - 8
    first, second = values.view(2, side, side)
    return first, second


def digest(product: torch.Tensor) -> str:
    return hashlib.sha256(product.cpu().contiguous().numpy().tobytes()).hexdigest()


def search(
    device: torch.device,
    seconds: float,
    *,
    side: int = SIDE,
    golden: str = GOLDEN,
    tamper: Callable[[int, torch.Tensor], None] | None = None,
) -> CorruptionResult:
    """Multiply and read back for so many seconds, and count what is wrong. At least two rounds are made.

    The first product is hashed on the host; where it is right, later ones are compared with it on the device.
    `tamper` gets the number and the product of each round, for tests of the search itself.
    """
    a, b = (each.to(device, torch.bfloat16) for each in factors(side))
    known: torch.Tensor | None = None
    wrong = rounds = 0
    until = time.monotonic() + seconds
    while rounds < 2 or time.monotonic() < until:
        product = multiply(a, b)
        if tamper is not None:
            tamper(rounds, product)
        if known is None:
            is_right = digest(product) == golden
            known = product.clone() if is_right else None
        else:
            is_right = bool(torch.equal(product, known))
        wrong += not is_right
        rounds += 1
    blocks, bad = _memory(device)
    note = f"{rounds} products of {side} x {side}, {blocks} blocks of memory of {_BLOCK >> 20} MiB"
    return CorruptionResult(wrong + bad, rounds, note)


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the product as fp32: by tensor cores with sums in fp32 on a GPU, in fp32 on a CPU."""
    if a.device.type == "cuda":
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


_BLOCK = 1 << 30
_CPU_BLOCK = 1 << 24


def _memory(device: torch.device) -> tuple[int, int]:
    """Write most of the free memory with a pattern that depends on the place, and read it back.

    Return how many blocks were written, and how many differ.
    """
    is_gpu = device.type == "cuda"
    size = (_BLOCK if is_gpu else _CPU_BLOCK) // 8
    count = max(1, int(torch.cuda.mem_get_info(device)[0] * 0.8) // _BLOCK - 2) if is_gpu else 2
    places = torch.arange(size, dtype=torch.int64, device=device)
    blocks = [torch.empty_like(places) for _ in range(count)]
    bad = 0
    for flip in (0, -1):  # each bit as 0 and as 1
        for number, block in enumerate(blocks):
            torch.bitwise_xor(places * _STEP, number ^ flip, out=block)
        for number, block in enumerate(blocks):
            block.bitwise_xor_(number ^ flip)
            bad += not torch.equal(block, places * _STEP)
    return count, bad
