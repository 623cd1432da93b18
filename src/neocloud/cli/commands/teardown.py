"""`neo down` and `neo destroy`: stop a cloud, or remove all its containers, networks, images and files."""

import shutil
from pathlib import Path
from typing import Annotated

import platformdirs
import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.machine.home import Home
from neocloud.cli.machine.server_process import run_server_verb, stop_server
from neocloud.cli.machine.systemd_unit import remove_unit
from neocloud.cli.output import say, warn
from neocloud.cli.progress import stage
from neocloud.cli.target import HomeOption, home_of
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.client.profiles import config_file, read_profiles, write_profiles
from neocloud.control_plane.settings_file import problem_at_stop
from neocloud.core.untrusted.files import remove_tree

CLIENT_FILES = (".sky/config.yaml", ".dstack/server/config.yml")

destroy_app = command_group()


@destroy_app.command()
def destroy(
    context: typer.Context,
    home: HomeOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip confirmation.")] = False,
) -> None:
    """Remove the cloud: containers, networks, images, mounts, files, its profile, its unit of systemd.

    All data in it is lost, including files on shared file systems. Debian packages are kept, and so are files
    that `neo client-config` wrote for other clients, which are listed.

    Examples:

      neo destroy
      neo destroy --home ~/cloud --yes
    """
    place = Home(home_of(context, home))
    if not place.is_ours():
        say(f"There is no cloud in {place.path}; nothing to remove.")
        _forget_profile(place.path)
        return
    if not yes and not typer.confirm(f"Remove the cloud in {place.path} with all its data?", err=True):
        raise typer.Abort
    remove_unit(place, stop=True)
    with place.locked(lambda: say(f"Another neo is working on {place.path}; waiting for it.")):
        with stage("Stop the server"):
            stop_server(place)
        with stage("Remove containers, networks and images"):
            run_server_verb(place, "--destroy-workloads")
        with stage("Remove files"):
            _remove_files(place.path)
    _forget_profile(place.path)
    echo(f"Neocloud is removed from this machine, with {place.path}.")
    left = remaining_files(Path.home())
    if left:
        echo("Kept, because other clients may use them; remove what was for this cloud, keys among them:")
        for path in left:
            echo(f"  {path}")


def remaining_files(user_home: Path) -> list[Path]:
    """Return what `neo client-config` and sign-ins may have left outside the state folder."""
    config = config_file().parent
    found = sorted((user_home / ".nebius").glob("*"))
    found += [user_home / name for name in CLIENT_FILES]
    found += sorted((config / "known_hosts").glob("*")) + ([config_file()] if config_file().exists() else [])
    return [path for path in found if path.exists()]


def _remove_files(folder: Path) -> None:
    mounts = mounts_below(folder)
    if mounts:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"{mounts[0]} is still mounted, and removing files through a mount could hit something else",
            f"Unmount it (`umount {mounts[0]}`) and run `neo destroy` again",
        )
    try:
        if folder.is_mount():  # a separate disk: it is emptied and kept
            _empty(folder)
        else:
            remove_tree(folder)
    except OSError as error:
        raise ClientError(
            "PERMISSION_DENIED",
            f"{folder} cannot be removed ({error.filename}: {error.strerror})",
            "Run as root",
        ) from error


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        remove_tree(path)


def mounts_below(folder: Path, mount_table: Path = Path("/proc/self/mountinfo")) -> list[str]:
    """Return the mount points inside `folder`, deepest first."""
    lines = mount_table.read_text().splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    prefix = f"{folder.resolve()}/"
    return sorted((point for point in points if point.startswith(prefix)), key=len, reverse=True)


def _forget_profile(folder: Path) -> None:
    """Remove the folder's profile and, with the last profile, the files outside the folder."""
    profiles = read_profiles(config_file())
    profile = profiles.of_home(folder)
    if profile is not None:
        profiles = profiles.without(profile.name)
        write_profiles(profiles, config_file())
    if not profiles.items:
        shutil.rmtree(config_file().parent / "known_hosts", ignore_errors=True)
        shutil.rmtree(platformdirs.user_cache_path("neocloud", appauthor=False), ignore_errors=True)
        if config_file().parent.is_dir() and not any(config_file().parent.iterdir()):
            config_file().parent.rmdir()


down_app = command_group()


@down_app.command()
def down(
    context: typer.Context,
    home: HomeOption = None,
) -> None:
    """Stop the cloud and everything that runs in it; keep its state.

    Clusters, file systems and billing history are still there after the next `neo up`. Running jobs are
    interrupted; Slurm requeues them.

    Examples:

      neo down
      neo down --home ~/cloud
    """
    place = Home(home_of(context, home))
    if not place.is_ours():
        say(f"There is no cloud in {place.path}; nothing to stop.")
        return
    with place.locked(lambda: say(f"Another neo is working on {place.path}; waiting for it.")):
        problem = problem_at_stop(place.path)
        with stage("Stop the server"):
            was_running = stop_server(place)
        with stage("Stop workloads"):
            run_server_verb(place, "--stop-workloads")
    echo("Neocloud is stopped." if was_running else "Neocloud was already stopped.")
    echo(f"Its state is kept in {place.path}. Start it again with `neo up`; remove it with `neo destroy`.")
    if problem:
        warn(
            f"{problem} `neo up` does not start before that. If the cloud uses PostgreSQL, its history may"
            " miss this stop, and workloads are billed for the time until they are started again."
        )
