"""Options of `neo slurm cluster create` that are fields of the cluster's spec."""

import re
from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.lazy import Options
from neocloud.cli.output import JsonObject
from neocloud.cli.ssh import default_public_keys, read_public_keys

FilesystemOption = Annotated[
    list[str] | None,
    typer.Option(metavar="ID:PATH", help="Filesystem to mount for jobs, e.g. at /mnt/data; repeatable."),
]
SubmountOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH=GIB[:memory]",
        help="Folder that each worker has for itself, on its disk or in memory, e.g. /scratch=100 or"
        " /fast=2:memory; repeatable.",
    ),
]


def mounts_of(filesystem: FilesystemOption = None, submount: SubmountOption = None) -> JsonObject:
    """Return the fields of the spec."""
    return {
        "filesystems": [_mounted(text) for text in filesystem or ()],
        "submounts": [_submount(text) for text in submount or ()],
    }


def _mounted(text: str) -> dict[str, str]:
    identifier, colon, path = text.partition(":")
    if not (identifier and colon and path):
        raise typer.BadParameter(
            f'"{text}" is not ID:PATH; give e.g. computefilesystem-e00abc:/mnt/data'
            " (`neo compute filesystem list` lists the ids)",
            param_hint="--filesystem",
        )
    return {"filesystem_id": identifier, "mount_path": path}


def _submount(text: str) -> JsonObject:
    path, equals, rest = text.partition("=")
    size, colon, medium = rest.partition(":")
    if not (path and equals and size.isascii() and size.isdigit()) or (colon and medium != "memory"):
        raise typer.BadParameter(
            f'"{text}" is not PATH=GIB or PATH=GIB:memory; give e.g. /scratch=100 or /fast=2:memory',
            param_hint="--submount",
        )
    return {"mount_path": path, "size_gibibytes": int(size), "in_memory": bool(medium)}


PlaceOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SET:FIRST-LAST=SWITCH/...",
        help="Switches above nodes, from the top to the leaf, for jobs on near nodes; repeatable.",
    ),
]
BlockOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SET:FIRST-LAST=BLOCK",
        help="Block of nodes, in place of switches: a job that fits into one gets one; repeatable.",
    ),
]
BlockSizeOption = Annotated[
    list[int] | None,
    typer.Option(help="Nodes that Slurm plans with in a block, and in several; repeatable, e.g. 18 and 36."),
]

_PLACE = re.compile(
    r"(?P<set>[^:=]+):(?P<first>[0-9]{1,4})(-(?P<last>[0-9]{1,4}))?=(?P<path>[^=]+)", re.ASCII
)


def topology_of(
    place: PlaceOption = None, block: BlockOption = None, block_size: BlockSizeOption = None
) -> JsonObject:
    """Return the field of the spec; nothing without these options."""
    if place and block:
        raise typer.BadParameter(
            "nodes are below switches or in blocks; give one of them", param_hint="--block"
        )
    if block_size and not block:
        raise typer.BadParameter("needs --block", param_hint="--block-size")
    if block:
        placed = [_placed(text, "--block", "SET:FIRST-LAST=BLOCK", "worker:0-17=rack-1") for text in block]
        return {"topology": {"type": "BLOCK", "nodes": placed, "block_sizes": block_size or []}}
    shape, example = "SET:FIRST-LAST=SWITCH/...", "worker:0-17=spine-1/leaf-1"
    placed = [_placed(text, "--place", shape, example) for text in place or ()]
    return {"topology": {"type": "TREE", "nodes": placed}} if placed else {}


def _placed(text: str, option: str, shape: str, example: str) -> JsonObject:
    found = _PLACE.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f'"{text}" is not {shape}; give e.g. {example}', param_hint=option)
    return {
        "node_set": found["set"],
        "first": int(found["first"]),
        "last": int(found["last"] or found["first"]),
        "path": found["path"].split("/"),
    }


MinWorkersOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Workers that stay when they are idle. The others are started when jobs wait for them.",
    ),
]
IdleSecondsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="How long a worker is idle before it is removed, with --min-workers. Default: 300."
    ),
]
SharedRootSizeOption = Annotated[int, typer.Option(help="Size of the shared root in GiB; 0: the default.")]
SshKeyOption = Annotated[
    list[Path] | None,
    typer.Option(help="Public key file to authorize; repeatable. Default: your keys in ~/.ssh."),
]
LoginPortOption = Annotated[
    int, typer.Option(help="Port of the login node on this machine; 0: any free port.")
]
LoginNodesOption = Annotated[
    int, typer.Option(help="Number of login nodes behind the port; each session goes to one that answers.")
]
ControllersOption = Annotated[
    int, typer.Option(min=1, max=2, help="Number of controllers; with 2, one takes over from the other.")
]
SubnetOption = Annotated[
    str, typer.Option(help="Id or name of the subnet of the nodes. Default: a new network for the cluster.")
]
AutoRepairOption = Annotated[
    bool, typer.Option("--auto-repair", help="Drain, restart and verify workers that fail: neo fleet node.")
]


def _elastic(min_workers: MinWorkersOption = None, idle_seconds: IdleSecondsOption = None) -> JsonObject:
    if min_workers is None:
        if idle_seconds is not None:
            raise typer.BadParameter(
                "needs --min-workers: workers go in elastic sets only", param_hint="--idle-seconds"
            )
        return {}
    return {"elastic": {"min_count": min_workers, "idle_seconds": idle_seconds or 0}}


def _login(
    ssh_key: SshKeyOption = None, login_port: LoginPortOption = 0, login_nodes: LoginNodesOption = 1
) -> JsonObject:
    keys = read_public_keys(default_public_keys(Path.home() / ".ssh") if ssh_key is None else ssh_key)
    return {"ssh_public_keys": keys, "port": login_port, "count": login_nodes}


NOTHING: JsonObject = {}
ElasticOptions = Annotated[JsonObject, Options(_elastic)]
LoginOptions = Annotated[JsonObject, Options(_login)]
MountOptions = Annotated[JsonObject, Options(mounts_of)]
TopologyOptions = Annotated[JsonObject, Options(topology_of)]


def _spec(
    shared_root_size: SharedRootSizeOption = 0,
    login: LoginOptions = NOTHING,
    controllers: ControllersOption = 1,
    subnet: SubnetOption = "",
    mounts: MountOptions = NOTHING,
    topology: TopologyOptions = NOTHING,
    auto_repair: AutoRepairOption = False,
) -> JsonObject:
    return {
        "shared_root": {"size_gibibytes": shared_root_size},
        "login": login,
        "controller": {"count": controllers},
        "subnet_id": subnet,
        "auto_repair": auto_repair,
        **mounts,
        **topology,
    }


SpecOptions = Annotated[JsonObject, Options(_spec)]
