"""Ask the kernel for the tile registers of AMX, which vLLM does not do on a CPU.

oneDNN asks when it first multiplies something large. Until then vLLM's own attention dies of an illegal
instruction: an engine whose first prompt is a short one. vLLM runs this in each of its processes (a plugin).
"""

import ctypes

ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18  # of x86-64


def allow_matrix_registers() -> None:
    """A processor or kernel without them says no, which is as good."""
    ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA)
