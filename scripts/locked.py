"""Print the packages of a group in requirements.lock, as requirements for pip --require-hashes.

    python3 scripts/locked.py server

Groups: `server` and `test` are the two kinds of .venv, `build` builds packages that come as source (and this
one), `jail` and `jail-gpu` are the shared root without and with a GPU, `cuda` is what torch needs beyond
that, `torch-cpu` a build of torch that needs none of it, `smollm2` a model and the reader of its file.
Standard library only: it runs before anything is installed.
"""

import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

LOCK = Path(__file__).resolve().parent.parent / "requirements.lock"
GROUPS = ("build", "server", "test", "jail", "jail-gpu", "cuda", "torch-cpu", "smollm2")


@dataclass(frozen=True)
class Entry:
    """A package at one version."""

    name: str
    version: str
    marker: str
    """The condition for its installation; "" always holds."""
    groups: frozenset[str]
    hashes: frozenset[str]
    """SHA-256 of its files for Linux."""

    @property
    def requirement(self) -> str:
        lines = [f"{self.name}=={self.version}{f' ; {self.marker}' if self.marker else ''}"]
        return " \\\n    ".join([*lines, *(f"--hash=sha256:{each}" for each in sorted(self.hashes))])

    @property
    def text(self) -> str:
        return f"# {' '.join(sorted(self.groups))}\n{self.requirement}\n"


def entries(text: str) -> Iterator[Entry]:
    """Parse a lock. Raises ValueError when it is not one."""
    groups: frozenset[str] = frozenset()
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("# "):
            groups = frozenset(line[2:].split())
        elif line.strip():
            pinned, *hashes = line.split("--hash=sha256:")
            requirement, _, marker = pinned.partition(";")
            name, _, version = requirement.strip().partition("==")
            if not (name and version and hashes):
                raise ValueError(f"A line of the lock is not a pinned package with hashes: {line[:80]!r}")
            yield Entry(name, version, marker.strip(), groups, frozenset(one.strip() for one in hashes))


def of_groups(*groups: str) -> list[Entry]:
    return [entry for entry in entries(LOCK.read_text()) if entry.groups & {*groups}]


def requirements(*groups: str, without: Collection[str] = ()) -> str:
    """Return the text for `pip --require-hashes --no-deps --requirement`."""
    return "".join(f"{entry.requirement}\n" for entry in of_groups(*groups) if entry.name not in without)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not {*sys.argv[1:]} <= {*GROUPS}:
        sys.exit(f"Which groups? {', '.join(GROUPS)}")
    print(requirements(*sys.argv[1:]), end="")
