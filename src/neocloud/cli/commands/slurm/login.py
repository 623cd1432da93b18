"""Sign in to a cluster with the user's own ssh, with its port and host key from the cloud.

The host key arrives over an authenticated connection, so that ssh never asks whether to trust it.
"""

import os
import shutil
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.machine.home import is_emulated
from neocloud.cli.output import say
from neocloud.cli.resources.lookup import CLUSTERS, Cloud, ClusterArgument, ProjectClient, state_of
from neocloud.cli.ssh import matching_identity, quoted
from neocloud.cli.terminal import echo
from neocloud.client.connection import live_endpoint
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile, config_file
from neocloud.settings.settings import EVERY_IPV4_ADDRESS, LOOPBACK

if TYPE_CHECKING:
    from neocloud.messages.neocloud.slurm.v1 import Cluster

IdentityOption = Annotated[
    Path | None,
    typer.Option(
        "--identity", "-i", help="Private key to sign in with. Default: an authorized one in ~/.ssh."
    ),
]


ROOT = "root"
UserOption = Annotated[str, typer.Option("--user", help="User of the cluster: `neo slurm user list`.")]


def ssh(
    cloud: Cloud,
    name: ClusterArgument,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Command to run, after `--`. Default: a shell.", show_default=False),
    ] = None,
    identity: IdentityOption = None,
    user: UserOption = ROOT,
) -> None:
    """Sign in to the login node, or run a command on it.

    Examples:

      neo slurm cluster ssh lab
      neo slurm cluster ssh lab -- sinfo
      neo slurm cluster ssh lab -- sbatch --wait train.sbatch
      neo slurm cluster ssh lab --user ann
    """
    program, *words = ssh_words(cloud, cloud.find(CLUSTERS, name), identity, user)
    os.execv(program, ["ssh", *words, *(command or ())])


def ssh_words(
    cloud: ProjectClient, cluster: "Cluster", identity: Path | None = None, user: str = ROOT
) -> list[str]:
    """Return the user's ssh with what it needs to sign in; a command may follow. Raises ClientError."""
    program = shutil.which("ssh")
    if program is None:
        raise ClientError(
            "FAILED_PRECONDITION", "ssh is not installed", "Run `apt-get install openssh-client`"
        )
    if is_emulated(cloud.profile):
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Cluster {cluster.metadata.name} is emulated: no login node runs,"
            " so there is nothing to sign in to",
            "For real clusters start a cloud with `neo up`",
        )
    settings = _settings(cloud, cluster, identity, user)
    if settings["HostName"] == LOOPBACK and not _is_near(cloud.profile):
        say(
            "This cloud opens ssh to login nodes on its own machine only."
            " Its operator opens it to others with `neo up --listen` and an IPv4 address."
        )
    options = [part for key, value in settings.items() for part in ("-o", f"{key}={quoted(value)}")]
    return [program, *options, "--", settings["HostName"]]


def ssh_config(
    cloud: Cloud, name: ClusterArgument, identity: IdentityOption = None, user: UserOption = ROOT
) -> None:
    """Print an OpenSSH configuration for the login node, for ssh, scp, rsync and editors.

    Examples:

      neo slurm cluster ssh-config lab > lab.ssh
      scp -F lab.ssh train.py lab:
      neo slurm cluster ssh-config lab >> ~/.ssh/config      # then: ssh lab
    """
    cluster = cloud.find(CLUSTERS, name)
    echo(f"Host {cluster.metadata.name}")
    for key, value in _settings(cloud, cluster, identity, user).items():
        echo(f"  {key} {quoted(value)}")


def _settings(cloud: ProjectClient, cluster: "Cluster", identity: Path | None, user: str) -> dict[str, str]:
    endpoint = cluster.status.login
    if not endpoint.port:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Cluster {cluster.metadata.name} has no login node yet: it is {state_of(cluster)}",
            f"See its pending steps with `neo slurm cluster get {quote(cluster.metadata.name)}`",
        )
    settings = {
        "HostName": login_host(cloud.profile, endpoint.host),
        "Port": str(endpoint.port),
        "User": user,
        "HostKeyAlias": cluster.metadata.id,
        "UserKnownHostsFile": str(_pin_host_keys(cloud, cluster)),
        "StrictHostKeyChecking": "yes",
    }
    chosen = identity or matching_identity(_authorized_keys(cluster, user), Path.home() / ".ssh")
    if chosen is not None:
        settings |= {"IdentityFile": str(chosen.absolute()), "IdentitiesOnly": "yes"}
    return settings


def _authorized_keys(cluster: "Cluster", user: str) -> list[str]:
    of_users = [key for each in cluster.spec.users if each.name == user for key in each.ssh_public_keys]
    return of_users if user != ROOT else list(cluster.spec.login.ssh_public_keys)


def _pin_host_keys(cloud: ProjectClient, cluster: "Cluster") -> Path:
    """Write the cluster's host keys for ssh: in the state folder, or else beside the profiles.

    They belong to the cluster's id: another profile may reach the cluster by another address. Configurations
    that were printed by earlier releases look for the address.
    """
    home = Path(cloud.profile.home) if cloud.profile.home else None
    parent = home if home is not None and os.access(home, os.W_OK) else config_file().parent
    folder = parent / "known_hosts"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / cluster.metadata.id
    endpoint = cluster.status.login
    host = login_host(cloud.profile, endpoint.host)
    name = host if endpoint.port == 22 else f"[{host}]:{endpoint.port}"
    names = f"{cluster.metadata.id},{name}"
    file.write_text("".join(f"{names} {key.strip()}\n" for key in endpoint.host_keys))
    return file


def login_host(profile: Profile, host: str) -> str:
    """Return the name or address by which this machine reaches a login node.

    `host` is that of the cluster's status. Another machine uses the one by which it reaches the API, which
    may be translated on the way; but login nodes have no IPv6 address.
    """
    if host == LOOPBACK or profile.home:
        return LOOPBACK
    of_api = _host_of(profile)
    return of_api if host == EVERY_IPV4_ADDRESS or ":" not in of_api else host


def _is_near(profile: Profile) -> bool:
    """Return whether the cloud is on this machine, or reached as if it were."""
    return bool(profile.home) or _host_of(profile) in (LOOPBACK, "localhost", "::1")


def _host_of(profile: Profile) -> str:
    return live_endpoint(profile).rpartition(":")[0].strip("[]")
