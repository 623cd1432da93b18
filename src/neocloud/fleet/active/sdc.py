"""Deterministic work whose result is known: another result is silent data corruption.

The work is defined by integer arithmetic, IEEE 754 double operations that are rounded one by one, and
standard hash functions. So its hash does not depend on the processor, the operating system or the version of
Python. Each stage takes the result of the stage before, so that a single wrong bit changes the last hash.
"""

import hashlib
import math
import struct
import zlib
from collections.abc import Callable

SEED = b"neocloud sdc 1"
MODULUS = (1 << 1279) - 1
"""A Mersenne prime: multiplication and reduction of large integers."""
PATTERN_BYTES = 1 << 20
ALL_64 = (1 << 64) - 1
Stage = Callable[[bytes], bytes]


def _integers(data: bytes) -> bytes:
    """A 64-bit multiply, add and rotate generator."""
    state = int.from_bytes(data[:8], "little") | 1
    total = 0
    for _ in range(4000):
        state = (state * 6364136223846793005 + 1442695040888963407) & ALL_64
        total = ((total ^ state) << 1 | (total ^ state) >> 63) & ALL_64
    return struct.pack("<QQ", state, total)


def _large_integers(data: bytes) -> bytes:
    base = int.from_bytes(hashlib.sha512(data).digest(), "little")
    return pow(base, 0xFEDCBA9876543210FEDCBA9876543211, MODULUS).to_bytes(160, "little")


def _floats(data: bytes) -> bytes:
    """Only operations that IEEE 754 rounds exactly: add, multiply, divide, square root."""
    x, total = 1.0 + int.from_bytes(hashlib.sha256(data).digest()[:6], "little") / 2.0**48, 0.0
    for number in range(1, 2000):
        x = math.sqrt(x * 1.25 + 1.0 / number)
        total = total + x / (number + 0.5)
    return struct.pack("<dd", x, total)


def _hashes(data: bytes) -> bytes:
    block = data * 4
    for name in ("sha256", "sha512", "blake2b", "sha3_256") * 8:
        block = hashlib.new(name, block * 16).digest()
    return block


def _memory(data: bytes) -> bytes:
    """Write a pattern, copy it, and read both again: the copies must be equal and have the known hash."""
    block = hashlib.sha512(data).digest()
    pattern = bytearray(block * (PATTERN_BYTES // len(block)))
    copy = bytes(pattern)
    crc = struct.pack("<II", zlib.crc32(pattern), zlib.crc32(copy))
    return crc + hashlib.sha256(copy).digest() + hashlib.sha256(pattern).digest()


STAGES: tuple[tuple[str, Stage], ...] = (
    ("integers", _integers),
    ("large integers", _large_integers),
    ("floats", _floats),
    ("hashes", _hashes),
    ("memory", _memory),
)


def work(between: Callable[[str, bytes], bytes] = lambda stage, data: data) -> str:
    """Return the hash of one round. `between` sees what each stage gives, and says what the next one gets."""
    data = SEED
    for name, stage in STAGES:
        data = between(name, data + stage(data))
        data = hashlib.sha256(data).digest()
    return data.hex()
