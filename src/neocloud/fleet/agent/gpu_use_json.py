"""The use of GPUs as JSON, written by an agent beside the results of its checks, and the reader of that JSON.

The reader takes numbers within the bounds of their measures and names that it knows, and refuses the rest.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neocloud.core.osfiles import write_file
from neocloud.fleet.agent.document import LONGEST_NAME, DocumentError, Fields
from neocloud.fleet.agent.probes.gpus import MOST_GPUS
from neocloud.fleet.nodes.gpu_use import MEASURES, GpuUse

if TYPE_CHECKING:
    from neocloud.fleet.agent.host import HostChecks

FILE = "gpus.json"


@dataclass(frozen=True)
class GpusSaid:
    since_boot_s: float = 0.0
    """When it was read."""
    gpus: Sequence[GpuUse] = ()
    simulated: str = ""


def write(folder: Path, checks: "HostChecks") -> None:
    """Write what was read last; without any, remove what was written before. Raises OSError."""
    if not checks.gpus:
        (folder / FILE).unlink(missing_ok=True)
        return
    write_file(folder / FILE, json.dumps(to_json(GpusSaid(checks.gpus_at, checks.gpus, checks.simulated))))


def to_json(said: GpusSaid) -> dict[str, object]:
    return {
        "since_boot_s": said.since_boot_s,
        "simulated": said.simulated,
        "gpus": [
            {"index": each.index, "model": each.model[:LONGEST_NAME], **each.values} for each in said.gpus
        ],
    }


def from_json(given: object) -> GpusSaid:
    """Return what `to_json` was given. An agent of an earlier release says nothing. Raises DocumentError."""
    if given is None:
        return GpusSaid()
    fields = Fields(given, "the use of the GPUs")
    said = GpusSaid(
        fields.number("since_boot_s"),
        [_gpu(each) for each in fields.rows("gpus", MOST_GPUS)],
        fields.text("simulated"),
    )
    fields.finish()
    if len({each.index for each in said.gpus}) < len(said.gpus):
        raise DocumentError("the use of a GPU is there twice")
    return said


def _gpu(fields: Fields) -> GpuUse:
    index, model = fields.number("index"), fields.text("model", LONGEST_NAME)
    values = {name: fields.number(name) for name in MEASURES if name in fields}
    fields.finish()
    if not index.is_integer() or index >= MOST_GPUS:
        raise DocumentError("the number of a GPU is out of bounds")
    for name, value in values.items():
        if value > MEASURES[name].most:
            raise DocumentError(f"{name} of a GPU is more than {MEASURES[name].most:g}")
    return GpuUse(int(index), model, values)
