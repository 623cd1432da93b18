"""The files, processes and rules of one cloud on this machine: to compare before and after.

Other clouds and other users of Podman may be at work here, so everything is looked for by the marks of one
cloud: its state folder, and the id that is derived from it.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

from neocloud.engines.podman.layout import Layout
from tests.e2e.cloud import Cloud, run
from tests.leftovers import RECORDS

SEARCHED = ("/run", "/tmp", "/var", "/etc", "/dev/shm", "/sys/fs/cgroup")


@dataclass(frozen=True)
class Marks:
    """The marks that distinguish a cloud's files and processes from others'."""

    folder: str
    id: str
    subnets: tuple[str, ...]

    @classmethod
    def of(cls, cloud: Cloud) -> "Marks":
        layout = Layout.of(cloud.home)
        records = layout.namespaces.glob("*/network.json")
        subnets = [json.loads(record.read_text())["subnet"] for record in records]
        # As rules and routes name them, with or without the length of the prefix.
        return cls(str(cloud.folder), layout.id, tuple(str(ip_network(s).network_address) for s in subnets))

    def in_text(self, text: str) -> bool:
        return any(mark in text for mark in (self.folder, self.id, *self.subnets))


def traces(marks: Marks) -> dict[str, list[str]]:
    """Everything that bears a mark, by what it is."""
    listings = {
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "links": run(["ip", "-brief", "link"]),
        "addresses and routes": run(["ip", "-brief", "address"]) + run(["ip", "route"]),
        "nft rules": run(["nft", "list", "ruleset"]),
        "processes": "\n".join(processes()),
        "files": "\n".join(files(marks)),
    }
    found = {
        what: [line for line in text.splitlines() if marks.in_text(line)] for what, text in listings.items()
    }
    return {what: lines for what, lines in found.items() if lines}


def processes() -> Iterator[str]:
    """Each process with its command, groups and working folder, except this one and its parents."""
    ours = {os.getpid(), os.getppid()}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) in ours:
            continue
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            groups = (folder / "cgroup").read_text().replace("\n", " ")
            yield f"{folder.name} {command} {groups} {os.readlink(folder / 'cwd')}".replace("\n", " ")
        except OSError:
            continue


def files(marks: Marks) -> Iterator[str]:
    """Outside the cloud's own folder: by name."""
    for root in SEARCHED:
        for path, folders, names in os.walk(root, onerror=lambda error: None):
            own = (marks.folder, RECORDS)  # the test run's record of the cloud, and the cloud's own folder
            folders[:] = [
                name for name in folders if not any(Path(path, name).is_relative_to(each) for each in own)
            ]
            yield from (os.path.join(path, name) for name in (*folders, *names) if marks.id in name)
