"""The requirements of vLLM in the shared root, and the ones it does without. Read when the lock is made.

On a CPU most of what it asks for is never loaded: video and speech, other vendors' clients, a second
compiler, and torch's sister libraries, whose wheels want CUDA and break `import transformers` beside a torch
without it. The root would be twice as large. On a GPU nothing is left out. Standard library only.
"""

import email.parser
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

NVIDIA = Path("/dev/nvidiactl")
LEFT_OUT = frozenset(
    (
        *("torchvision", "torchaudio", "torchcodec"),
        *("opencv-python-headless", "mistral-common", "numba", "intel-openmp"),
        *("anthropic", "depyf", "outlines-core", "supervisor", "opentelemetry-exporter-otlp"),
        *("ninja",),
    )
)
INSTEAD = ("fastapi", "uvicorn[standard]", "httpx", "jinja2", "python-multipart")
"""The serving part of `fastapi[standard]`, which vLLM requires; the rest deploys to somebody's cloud."""
_CUDA = re.compile(r"(nvidia|cuda)-", re.IGNORECASE)


def has_nvidia_gpu() -> bool:
    return NVIDIA.exists()


def needs_cuda(wheels: Iterable[Path]) -> bool:
    """Return whether the torch among these wheels is the build for GPUs, which does not load without CUDA's
    libraries.
    """
    return any(
        _CUDA.match(text)
        for wheel in wheels
        if wheel.name.startswith("torch-")
        for text in _requirements(wheel)
    )


def _requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    return email.parser.Parser().parsestr(text, headersonly=True).get_all("Requires-Dist") or []
