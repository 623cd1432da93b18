"""Write the results of checks as a file in Prometheus's text format, for the textfile collector of a node
exporter.

Names of devices come from the kernel and may hold anything: labels are bounded and escaped, and so is their
number.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from neocloud.core.osfiles import write_file
from neocloud.fleet.agent.document import Document
from neocloud.fleet.agent.probe_result import Reading

MOST_SERIES = 4096
"""Series of readings; those of further devices are left out."""
LONGEST_LABEL = 128
READABLE = 0o644
"""A node exporter runs as a user of its own."""
_ESCAPED = {"\\": r"\\", '"': r"\"", "\n": r"\n"}


def write_metrics_file(path: Path, document: Document, readings: Iterable[Reading]) -> None:
    """Replace the file in one step. Raises OSError."""
    write_file(path, "".join(f"{line}\n" for line in lines(document, readings)), READABLE)


def lines(document: Document, readings: Iterable[Reading]) -> Iterator[str]:
    yield from _head("check", "The answer of a check: 1 for pass, fail or unknown.")
    for each in document.verdicts:
        yield _sample("check", {"check": each.check, "status": each.status.value}, 1)
    yield from _head("checks_not_run", "Checks that do not apply here, or have nothing to compare with.")
    yield _sample("checks_not_run", {}, len(document.not_run))
    yield from _head("checked_timestamp_seconds", "When the checks were last made.")
    yield _sample("checked_timestamp_seconds", {}, document.at)
    yield from _head("uptime_seconds", "Since this start of the host.")
    yield _sample("uptime_seconds", {}, document.since_boot_s)
    yield from _head("simulated", "Whether a part of this is not real.")
    yield _sample("simulated", {}, bool(document.simulated))
    yield from _head("reading", "What a check was made from, e.g. a counter of a port.")
    found = {(each.check, each.device): each.value for each in readings if math.isfinite(each.value)}
    for (check, device), value in sorted(found.items())[:MOST_SERIES]:
        yield _sample("reading", {"check": check, "device": device}, value)


def _head(name: str, description: str) -> Iterator[str]:
    yield f"# HELP neocloud_node_{name} {description}"
    yield f"# TYPE neocloud_node_{name} gauge"


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    written = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"neocloud_node_{name}{{{written}}} {float(value)!r}"


def _escaped(text: str) -> str:
    shown = "".join(_ESCAPED.get(each, each) for each in text[:LONGEST_LABEL])
    return shown.encode(errors="replace").decode()
