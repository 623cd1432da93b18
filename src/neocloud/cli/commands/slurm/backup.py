"""`neo slurm cluster backup` and `restore`: a cluster's files and accounting in one file, and back."""

import json
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from neocloud import __version__
from neocloud.cli.commands.slurm.backup_file import (
    ACCOUNTING,
    FILES,
    FORMAT,
    MANIFEST,
    Contents,
    Member,
    Writer,
    damaged,
    new_file,
    read_backup,
    refuse_existing,
)
from neocloud.cli.commands.slurm.backup_objects import ObjectWriter, folder_in, new_objects, opened_objects
from neocloud.cli.commands.slurm.changes import report_ready
from neocloud.cli.commands.slurm.login import IdentityOption, ssh_words
from neocloud.cli.commands.slurm.remote_files import replace_files, saved_files, with_progress
from neocloud.cli.commands.slurm.watch import watch_operation
from neocloud.cli.output import Format, OutputOption, fields_table, say, show, size_text
from neocloud.cli.progress import duration, stage
from neocloud.cli.resources.lookup import (
    CLUSTERS,
    Cloud,
    ClusterArgument,
    ProjectClient,
    ProjectOption,
    connect_to_project,
    state_of,
)
from neocloud.cli.signals import stopped_by_signals
from neocloud.cli.ssh import read_public_keys
from neocloud.cli.storage.places import BucketPlace
from neocloud.cli.storage.session import EnvKeyOption
from neocloud.client.errors import ClientError
from neocloud.control_plane.backup.archive import BackupError, open_regular
from neocloud.core import contract
from neocloud.core.json_values import is_object

if TYPE_CHECKING:
    from neocloud.messages.neocloud.slurm.v1 import Cluster, ClusterSpec

BACKUPS = "neocloud.slurm.v1.BackupService"
CALL_SECONDS = 900.0
PART_BYTES = 2 * 2**20
USABLE = ("READY", "UPDATING")
RESET = ["spec.node_sets.*.count"]
"""A count of 0 is the field's default: it is taken only if the mask names it."""


def backup(
    context: typer.Context,
    cloud: Cloud,
    name: ClusterArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TARGET", help="File to write on this machine, or a folder s3://BUCKET/NAME."
        ),
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace TARGET if it exists.")] = False,
    identity: IdentityOption = None,
    env_key: EnvKeyOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Back up a cluster: its shared root, Slurm's accounting, and its spec. Jobs continue.

    The files come over ssh, so you need a login key of root. A file is not encrypted and holds all that the
    users' files hold, also their keys; only you can read it. Filesystems that are mounted are not in it.

    In a bucket it is four objects of a folder, which you write with your own right, and anyone who may read
    them reads all of it. Nothing is stored on this machine. The backup is complete with its SHA256SUMS.

    Examples:

      neo slurm cluster backup lab --to lab.backup
      neo slurm cluster backup lab --to s3://backups/lab-2026-11-27
      neo slurm cluster backup lab --to /mnt/backups/lab.backup --force
    """
    cluster = cloud.find(CLUSTERS, name)
    folder = folder_in(to)
    target = str(folder) if folder else str(Path(to).absolute())
    if not folder:
        refuse_existing(Path(target), replace=force)
    if state_of(cluster) not in USABLE:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Cluster {cluster.metadata.name} is {state_of(cluster)}, not READY",
            f"See what it waits for: neo slurm cluster get {quote(cluster.metadata.name)}",
        )
    ssh = ssh_words(cloud, cluster, identity)
    started = time.monotonic()
    new = (
        new_objects(context, folder, cloud.project, replace=force, env_key=env_key)
        if folder
        else new_file(Path(target), replace=force)
    )
    with stopped_by_signals(), new as writer:
        accounting, files = _write(cloud, cluster, ssh, writer)
    seconds = time.monotonic() - started
    show(
        output,
        {"file": target, "accounting_bytes": accounting, "shared_root_bytes": files, "seconds": seconds},
        fields_table(
            [
                *(("Backup", target), ("Shared root", size_text(files))),
                *(("Accounting", size_text(accounting)), ("Took", duration(seconds))),
            ]
        ),
    )


def _write(
    cloud: ProjectClient, cluster: "Cluster", ssh: Sequence[str], writer: Writer | ObjectWriter
) -> tuple[int, int]:
    """Write all members; return the bytes of the accounting and of the shared root."""
    writer.add(MANIFEST, [json.dumps(_manifest(cluster), indent=2).encode()])
    with stage("Dump the accounting"):
        accounting = writer.add(ACCOUNTING, _dumped(cloud, cluster.metadata.id))
    with stage("Copy the shared root") as show_detail:
        files = writer.add(FILES, with_progress(saved_files(ssh), show_detail))
    writer.finish()
    return accounting, files


def _manifest(cluster: "Cluster") -> dict[str, object]:
    return {
        "format": FORMAT,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "neocloud_version": __version__,
        "slurm_version": cluster.status.slurm_version,
        "name": cluster.metadata.name,
        "spec": contract.to_dict(cluster.spec),
    }


def _dumped(cloud: ProjectClient, cluster_id: str) -> Iterator[bytes]:
    dump = cloud.client.call(
        f"{BACKUPS}/DumpAccounting", {"cluster_id": cluster_id}, timeout_seconds=CALL_SECONDS
    )
    offset = 0
    while offset < dump.size_bytes:
        request = {"cluster_id": cluster_id, "dump_id": dump.dump_id, "offset": offset}
        part = cloud.client.call(f"{BACKUPS}/ReadAccounting", request, timeout_seconds=CALL_SECONDS)
        if not part.data:
            raise ClientError("UNAVAILABLE", "The dump of the accounting ended too early", "Try again")
        yield part.data
        offset += len(part.data)


def restore(
    context: typer.Context,
    file: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="File, or folder s3://BUCKET/NAME, that `neo slurm cluster backup` has written.",
        ),
    ],
    name: Annotated[
        str, typer.Option("--name", help="Name of the new cluster. Default: the one in the backup.")
    ] = "",
    ssh_key: Annotated[
        list[Path] | None,
        typer.Option(help="Public key file to authorize beside those of the backup; repeatable."),
    ] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Leave out the subnet and the filesystems of the backup.")
    ] = False,
    shared_root_size: Annotated[
        int, typer.Option(help="Size of the new shared root in GiB; 0: the one in the backup.")
    ] = 0,
    check: Annotated[
        bool, typer.Option("--check", help="Read and check the whole file, and restore nothing.")
    ] = False,
    identity: IdentityOption = None,
    project: ProjectOption = "",
    env_key: EnvKeyOption = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """Restore a cluster from a backup, as a new one: its files, accounts, users and the history of its jobs.

    A cluster of that name must not exist. Workers start when everything is there. If the restore fails or is
    interrupted, the new cluster is deleted again. Jobs that ran or waited when the backup was made are
    CANCELLED in the history; the numbers of new jobs continue after the old ones.

    Examples:

      neo slurm cluster restore lab.backup
      neo slurm cluster restore lab.backup --name lab-copy --ssh-key ~/.ssh/id_ed25519.pub
      neo slurm cluster restore lab.backup --check
      neo slurm cluster restore s3://backups/lab-2026-11-27
    """
    folder = folder_in(file)
    with _opened(context, file, folder, project, env_key=env_key) as (contents, kept_name, spec):
        if check:
            rows = [("Backup", folder or Path(file).absolute()), *_facts(contents)]
            show(output, dict(contents.manifest), fields_table(rows))
            return
        cloud = connect_to_project(context, project)
        spec.login.ssh_public_keys.extend(read_public_keys(ssh_key or ()))
        if shared_root_size:
            spec.shared_root.size_gibibytes = shared_root_size
        if standalone:
            spec.subnet_id = ""
            del spec.filesystems[:]
        started = time.monotonic()
        cluster = _restored(cloud, contents, name or kept_name, spec, identity)
    text = f"Cluster {cluster.metadata.name} is restored after {duration(time.monotonic() - started)}."
    report_ready(cluster, output, text)


def _facts(contents: Contents) -> list[tuple[str, object]]:
    found = contents.manifest
    return [
        ("Cluster", str(found.get("name", ""))),
        ("Made", str(found.get("made_at", ""))),
        ("Slurm", str(found.get("slurm_version", ""))),
        ("Shared root", size_text(contents.files.size)),
        ("Accounting", size_text(contents.accounting.size)),
    ]


@contextmanager
def _opened(
    context: typer.Context, file: str, folder: BucketPlace | None, project: str, *, env_key: bool
) -> Generator[tuple[Contents, str, "ClusterSpec"]]:
    """Open a backup and check it whole: its members, the name of its cluster, and the spec."""
    with ExitStack() as stack:
        stack.enter_context(stopped_by_signals())
        if folder:
            with stage("Check the backup"):
                opened_backup = opened_objects(context, folder, project, env_key=env_key)
                contents = stack.enter_context(opened_backup)
        else:
            opened = stack.enter_context(_open_file(Path(file)))
            with stage("Check the backup"):
                contents = read_backup(opened)
        spec, name = contents.manifest.get("spec"), contents.manifest.get("name")
        if not is_object(spec) or not isinstance(name, str):
            raise damaged("it does not name its cluster")
        try:
            message = contract.from_dict(contract.message("neocloud.slurm.v1.ClusterSpec"), spec)
        except contract.ApiError as error:
            raise damaged(error.message) from error
        yield contents, name, message


def _open_file(file: Path) -> BinaryIO:
    try:
        return open_regular(file)
    except BackupError as error:
        raise ClientError("INVALID_ARGUMENT", error.what, error.next_step) from error


def _restored(
    cloud: ProjectClient, contents: Contents, name: str, spec: "ClusterSpec", identity: Path | None
) -> Any:
    if cloud.find_optional(CLUSTERS, name) is not None:
        raise ClientError(
            "ALREADY_EXISTS",
            f"A cluster named {name!r} exists already, and a backup is not restored over one",
            f"Restore it beside that one with --name, or first run: neo slurm cluster delete {quote(name)}",
        )
    if not spec.login.ssh_public_keys:
        raise ClientError(
            "INVALID_ARGUMENT",
            "The cluster of this backup has no login key, so its files could not be written",
            "Authorize one of yours with --ssh-key",
        )
    operation = cloud.client.call(
        f"{CLUSTERS}/Create",
        contract.message("neocloud.slurm.v1.CreateClusterRequest")(
            metadata={"parent_id": cloud.project, "name": name}, spec=begun_with(spec)
        ),
    )
    with _deleted_on_failure(cloud, operation.resource_id, name):
        watch_operation(cloud, operation, f"Cluster {name}, without workers")
        cluster = cloud.client.call(f"{CLUSTERS}/Get", {"id": operation.resource_id})
        _check_version(str(contents.manifest.get("slurm_version", "")), cluster.status.slurm_version)
        ssh = ssh_words(cloud, cluster, identity)
        with stage("Restore the shared root") as show_detail:
            chunks = with_progress(contents.files.chunks(), show_detail, contents.files.size)
            replace_files(ssh, chunks)
        with stage("Restore the accounting"):
            _load(cloud, operation.resource_id, contents.accounting)
        return _with_workers(cloud, operation.resource_id, spec)


def begun_with(spec: "ClusterSpec") -> "ClusterSpec":
    """Return the spec of the cluster while files and accounting are restored into it."""
    begun = contract.message("neocloud.slurm.v1.ClusterSpec")()
    begun.CopyFrom(spec)
    del begun.users[:]  # their numbers are in the files
    for part in begun.node_sets:
        part.count = 0  # no job may see half of it
        part.ClearField("elastic")
    return begun


def _check_version(made: str, running: str) -> None:
    """Rows of a newer Slurm may have another meaning."""
    if _release(made) > _release(running):
        raise ClientError(
            "FAILED_PRECONDITION",
            f"The backup is of Slurm {made}, and clusters of this cloud run {running}",
            "Upgrade the cloud first",
        )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in version.split(".")[:2] if word.isdigit() and len(word) < 6)


def _load(cloud: ProjectClient, cluster_id: str, accounting: Member) -> None:
    offset = 0
    for part in accounting.chunks(PART_BYTES):
        request = {"cluster_id": cluster_id, "offset": offset}
        message = contract.message("neocloud.slurm.v1.WriteAccountingRequest")(**request, data=part)
        cloud.client.call(f"{BACKUPS}/WriteAccounting", message, timeout_seconds=CALL_SECONDS)
        offset += len(part)
    cloud.client.call(f"{BACKUPS}/LoadAccounting", {"cluster_id": cluster_id}, timeout_seconds=CALL_SECONDS)


def _with_workers(cloud: ProjectClient, cluster_id: str, spec: "ClusterSpec") -> Any:
    cluster = cloud.client.call(f"{CLUSTERS}/Get", {"id": cluster_id})
    request = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(
        metadata={"id": cluster_id, "resource_version": cluster.metadata.resource_version}, spec=spec
    )
    operation = cloud.client.call(f"{CLUSTERS}/Update", request, reset_mask=RESET)
    watch_operation(cloud, operation, f"Start the workers of {cluster.metadata.name}", is_change=True)
    return cloud.client.call(f"{CLUSTERS}/Get", {"id": cluster_id})


@contextmanager
def _deleted_on_failure(cloud: ProjectClient, cluster_id: str, name: str) -> Generator[None]:
    """Delete the new cluster if the body fails: it holds nothing that the backup does not."""
    try:
        yield
    except BaseException:
        try:
            cloud.client.call(f"{CLUSTERS}/Delete", {"id": cluster_id})
            say(f"Cluster {name} was not restored, and is being deleted again.")
        except ClientError as error:
            say(f"Cluster {name} was not restored, and not deleted: {error}")
            say(f"Delete it before you try again: neo slurm cluster delete {quote(name)}")
        raise
