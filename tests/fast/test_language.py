"""Words that the code gave up for standard terms (docs/glossary.md) do not come back."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT

BANNED = {
    "brick": "service",
    "wish": "desired state",
    "twin": "alias",
    "newborn": "new child",
    "sow": "create defaults",
    "sown": "created",
    "purse": "budget balance",
    "hurry": "short retries",
    "anew": "again",
    "reckon": "compute",
    "whoever": "a caller who, anyone who",
    "give_back": "release",
    "let_go": "release",
    "lay_out": "stage",
}
"""Each with what to write instead. Found as a word, or as a part of a name (`BrickList`)."""

ON_THE_WIRE = ("StartedAnew",)
"""Codes that clients know, which stay as they are."""

REWORDED = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/concepts",
    "docs/guides",
    "docs/howto",
    "docs/rfd",
    "images",
    "recipes",
    "runs",
    "bench",
    "scripts",
    "proto/neocloud/compute",
    "proto/neocloud/emulator",
    "proto/neocloud/operator",
    "docs/reference/limits.md",
    "docs/reference/measurements.md",
    "src/neocloud/cli",
    "src/neocloud/client",
    "src/neocloud/core",
    "src/neocloud/emulator",
    "src/neocloud/engines",
    "src/neocloud/model_gateway",
    "src/neocloud/object_store/blobs",
    "src/neocloud/object_store/bodies",
    "src/neocloud/object_store/metadata",
    "src/neocloud/object_store/backends/blobs",
    "src/neocloud/server",
    "src/neocloud/services/ai",
    "src/neocloud/services/audit",
    "src/neocloud/services/billing",
    "src/neocloud/services/compute",
    "src/neocloud/services/emulator",
    "src/neocloud/services/iam",
    "src/neocloud/services/operator",
    "src/neocloud/services/inference",
    "src/neocloud/services/quotas",
    "src/neocloud/services/slurm",
    "src/neocloud/services/vpc",
    "src/neocloud/services/tuning",
    "src/neocloud/testing",
    "proto/neocloud/iam",
    "proto/neocloud/inference",
    "proto/neocloud/tuning",
)
"""What was reworded so far; the rest follows."""

KEPT_WORDS = {
    ("src/neocloud/services/inference/model_server_key.py", "whoever"),
    ("src/neocloud/services/inference/reconcile/slurm_job.py", "anew"),
    ("src/neocloud/services/tuning/types.py", "wish"),
}
"""Keys of stored data, and texts that running replicas carry and are replaced for; they stay, by file."""


def files(root: Path) -> Iterator[Path]:
    suffixes = (".py", ".md", ".proto", ".html", ".js", ".yaml", ".toml")
    yield from [root] if root.is_file() else (path for path in root.rglob("*") if path.suffix in suffixes)


def words(text: str) -> Iterator[str]:
    """Words of prose and parts of names, in lower case: `MethodTwin` has "method" and "twin"."""
    for name in re.findall(r"[A-Za-z_]+", text):
        if name in ON_THE_WIRE:
            continue
        yield name.lower()
        parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
        yield from (part.lower() for part in parts if len(parts) > 1)


@pytest.mark.parametrize("place", REWORDED)
def test_no_banned_word(place: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word!r}: write {BANNED[word]!r}"
        for path in files(ROOT / place)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for word in words(line)
        if word in BANNED and (str(path.relative_to(ROOT)), word) not in KEPT_WORDS
    ]
    assert not found, "\n".join(found)


def test_every_place_exists() -> None:
    assert all((ROOT / place).exists() for place in REWORDED)
