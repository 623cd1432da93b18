"""Follows pages of the documentation on a real cloud: their commands as written, in order, in one shell."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.e2e.cloud import Cloud
from tests.e2e.cluster import user_key
from tests.fast.guides.blocks import ROOT, Block, blocks_of
from tests.real.guides.session import Reader, environment_of, parts_of, run_page
from tests.two_machines import Machine

LEAVES_SHELLS = {"@login-0:~#": "exit"}
"""The answer that ends a shell on a login node, by its prompt."""


def follow(
    cloud: Cloud,
    page: str,
    folder: Path,
    *,
    runs: Sequence[str] = (),
    reader: Reader | None = None,
    laptop: Machine | None = None,
) -> str:
    """Run the commands of a page that begin with one of `runs`, and return their output.

    A command ends in a newline. Without `runs` all are run, except those that `reader` names. They run in the
    folder "work" of `folder`, with the key of the cloud's user in ~/.ssh: on the cloud's machine, or on a
    laptop that is signed in already.
    """
    reader = reader or Reader()
    blocks = blocks_of(ROOT / page)
    parts = [part for block in blocks for part in parts_of(block)]
    for start in (*runs, *reader.not_run):
        assert any(f"{part}\n".startswith(start) for part in parts), f"{page} no longer has {start!r}"
    if runs:
        others = {part: "not meant" for part in parts if not f"{part}\n".startswith(tuple(runs))}
        reader = replace(reader, not_run=others)
    (folder / "work").mkdir(parents=True, exist_ok=True)
    home_directory = laptop.home_directory if laptop else folder / "me"
    has_key(home_directory, user_key(cloud))
    more = {} if laptop else {"NEOCLOUD_HOME": str(cloud.home)}
    environment = environment_of(home_directory, folder / "cache", **more)
    enter = ["ip", "netns", "exec", laptop.namespace] if laptop else []
    return "".join(run_page(blocks, reader, folder, environment, enter).values())


def has_key(home_directory: Path, key: Path) -> None:
    """Show a key in ~/.ssh of a home directory."""
    folder = home_directory / ".ssh"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file in (key, key.with_suffix(".pub")):
        (folder / file.name).symlink_to(file)


def block_with(page: str, text: str) -> Block:
    """Return the only code block of a page that has this text."""
    (block,) = (block for block in blocks_of(ROOT / page) if text in block.text)
    return block
