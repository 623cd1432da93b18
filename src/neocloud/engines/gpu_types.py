"""The type of a GPU, as in `--gres=gpu:<type>:<n>` and in a platform's name. Pure.

It is found from the name that NVML gives. The board matters where it changes what the GPU can do: an H100 on
SXM has NVLink and HBM3, one on PCIe has not, so they are two types.
"""

import re

_PATTERNS = (
    (re.compile(r"\bH200 NVL\b"), "h200-nvl"),
    (re.compile(r"\bH200\b"), "h200"),
    (re.compile(r"\bH100 PCIe\b"), "h100-pcie"),
    (re.compile(r"\bH100 NVL\b"), "h100-nvl"),
    (re.compile(r"\bH100\b"), "h100"),
    (re.compile(r"\bL40S\b"), "l40s"),
    (re.compile(r"\bB300\b"), "b300"),
    (re.compile(r"\bB200\b"), "b200"),
    (re.compile(r"\bRTX ?PRO ?6000\b|\bRTX6000\b", re.IGNORECASE), "rtx6000"),
    (re.compile(r"\bA100\b.*\bPCIe\b", re.IGNORECASE), "a100-pcie"),
    (re.compile(r"\bA100\b"), "a100"),
)
_VENDOR_WORDS = frozenset({"nvidia", "amd", "tesla", "geforce", "quadro"})


def gpu_type(model: str) -> str:
    """Return the type of a model: "NVIDIA H100 80GB HBM3" is "h100". A model without a pattern keeps its
    own name: "NVIDIA T4" is "t4"."""
    for pattern, name in _PATTERNS:
        if pattern.search(model):
            return name
    words = [word for word in re.findall(r"[a-z0-9]+", model.lower()) if word not in _VENDOR_WORDS]
    return "-".join(words) or "gpu"
