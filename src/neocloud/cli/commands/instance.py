"""`neo compute instance`: create a machine with an SSH key, restart it, sign in, read its serial log."""

import os
import shutil
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
import yaml

from neocloud.cli.commands.capacity import list_platforms
from neocloud.cli.commands.disk_export import EXPORT_OVERRIDES
from neocloud.cli.machine.home import is_emulated
from neocloud.cli.output import DryRunOption, Format, JsonObject, OutputOption, fields_table, say, show, warn
from neocloud.cli.progress import duration, finish, stage
from neocloud.cli.resources.lookup import (
    INSTANCES,
    Cloud,
    ProjectClient,
    ProjectOption,
    connect_to_project,
    names_of,
    state_of,
)
from neocloud.cli.resources.names import resolve_names, with_field_names
from neocloud.cli.resources.noun import Overrides, load_method
from neocloud.cli.resources.prices import show_trial
from neocloud.cli.resources.shapes import smallest_shape
from neocloud.cli.ssh import (
    LOGIN_SECONDS,
    SSH_PORT,
    accepts_ssh,
    default_public_keys,
    has_proxy,
    quoted,
    read_public_keys,
)
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.client.profiles import config_file
from neocloud.core import contract
from neocloud.core.json_values import as_object, is_object

if TYPE_CHECKING:
    from neocloud.messages.nebius.common.v1 import Operation
    from neocloud.messages.nebius.compute.v1 import Instance

CREATE = f"{INSTANCES}/Create"
WAIT_SECONDS = 900.0
FOLLOW_SECONDS = 1.0
MACHINES = "neocloud.compute.v1.MachineService"
BOOT_SECONDS = 300
DEFAULT_USER = "ubuntu"
DEFAULT_FAMILY = "ubuntu24.04-driverless"
NameArgument = Annotated[
    str, typer.Argument(help="Name or id of the instance.", autocompletion=names_of(INSTANCES))
]
UserOption = Annotated[str, typer.Option(help="User account in the guest.")]
WaitOption = Annotated[
    int, typer.Option(min=0, metavar="SECONDS", help="Time to wait for a guest that still boots.")
]


CreateNameArgument = Annotated[str, typer.Argument(help="Name of the instance.")]
PlatformOption = Annotated[str, typer.Option(help="Platform. Default: one without GPUs.")]
PresetOption = Annotated[str, typer.Option(help="CPUs, memory and GPUs. Default: the smallest.")]
ImageFamilyOption = Annotated[str, typer.Option(help="Family of the boot disk's image.")]
DiskSizeOption = Annotated[int, typer.Option(help="GiB of the boot disk.")]
SubnetOption = Annotated[
    str, typer.Option(help="Id or name of the subnet. Default: the project's default subnet.")
]
SshKeyOption = Annotated[
    list[Path] | None,
    typer.Option(help="Public key file to authorize; repeatable. Default: your keys in ~/.ssh."),
]
PublicIpOption = Annotated[bool, typer.Option("--public-ip", help="Assign a public address.")]
PreemptibleOption = Annotated[
    bool, typer.Option("--preemptible", help="Create a cheaper machine that may be stopped at any time.")
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file",
        "-f",
        help="Read the spec from a YAML or JSON file; it overrides the options. Labels of its metadata are"
        " used, and its parent_id unless --project is given.",
    ),
]


def create(
    context: typer.Context,
    name: CreateNameArgument,
    platform: PlatformOption = "",
    preset: PresetOption = "",
    image_family: ImageFamilyOption = DEFAULT_FAMILY,
    disk_size: DiskSizeOption = 10,
    subnet: SubnetOption = "",
    ssh_key: SshKeyOption = None,
    user: UserOption = DEFAULT_USER,
    public_ip: PublicIpOption = False,
    preemptible: PreemptibleOption = False,
    file: FileOption = None,
    dry_run: DryRunOption = False,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Create a machine that accepts your SSH key, and wait until it runs.

    Examples:

      neo compute instance create web --preset 2vcpu-4gb --public-ip
      neo compute instance create web --preset 2vcpu-4gb --dry-run
      neo compute instance create web --file machine.yaml
    """
    given = _read(file) if file is not None else {}
    metadata = as_object(given.get("metadata"))
    cloud = connect_to_project(context, project or str(metadata.get("parent_id") or ""))
    platform, preset = smallest_shape(cloud, platform, preset)
    keys = read_public_keys(default_public_keys(Path.home() / ".ssh") if ssh_key is None else ssh_key)
    spec = _spec(cloud, name, platform, preset, image_family, disk_size, subnet, user_data(user, keys))
    if public_ip:
        spec["network_interfaces"][0]["public_ip_address"] = {}
    if preemptible:
        spec |= {"preemptible": {"on_preemption": "STOP"}, "recovery_policy": "FAIL"}
    spec |= given.get("spec", {})
    request: dict[str, JsonObject] = {"metadata": {"parent_id": cloud.project, "name": name}, "spec": spec}
    if metadata.get("labels"):
        request["metadata"]["labels"] = metadata["labels"]
    resolve_names(request, load_method(CREATE).input.DESCRIPTOR, cloud)
    if dry_run:
        show_trial(cloud.client, CREATE, request, output)
        return
    operation = cloud.client.call(CREATE, request)
    shape = as_object(spec.get("resources"))
    _wait(cloud, operation, f"Instance {name}: {shape.get('preset')} on {shape.get('platform')}")
    instance = cloud.client.call(f"{INSTANCES}/Get", {"id": operation.resource_id})
    if not keys:
        say("Nobody can sign in with ssh: no key was given and ~/.ssh contains none.")
    if output is not Format.TABLE:
        show(output, contract.to_document(instance), fields_table(()))
        return
    if is_emulated(cloud.profile):
        echo(f"Instance {name} is {state_of(instance)}. It is emulated: there is no machine to sign in to.")
        return
    echo(
        f"Instance {name} is {state_of(instance)}, and its guest boots now, which takes minutes without KVM."
    )
    echo(f"See it boot: neo compute instance serial-log {quote(name)} --follow")
    echo(f"Sign in: neo compute instance ssh {quote(name)}   or: ssh {user}@{_host_of(instance)}")


def start(cloud: Cloud, name: NameArgument) -> None:
    """Start a stopped machine and wait until it runs.

    Example:

      neo compute instance start web
    """
    _change(cloud, cloud.find(INSTANCES, name).metadata.id, "Start", name)
    echo(f"Instance {name} is running.")


def stop(cloud: Cloud, name: NameArgument) -> None:
    """Shut a machine down gracefully; its disks and addresses are kept, and only disks are charged.

    Example:

      neo compute instance stop web
    """
    _change(cloud, cloud.find(INSTANCES, name).metadata.id, "Stop", name)
    echo(f"Instance {name} is stopped.")


def restart(cloud: Cloud, name: NameArgument) -> None:
    """Stop a machine gracefully and start it again; its disks and addresses are kept.

    Example:

      neo compute instance restart web
    """
    instance_id = cloud.find(INSTANCES, name).metadata.id
    _change(cloud, instance_id, "Stop", name)
    _change(cloud, instance_id, "Start", name)
    echo(f"Instance {name} is running.")


def ssh(
    cloud: Cloud,
    name: NameArgument,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Command to run, after `--`. Default: a shell.", show_default=False),
    ] = None,
    user: UserOption = DEFAULT_USER,
    identity: Annotated[
        Path | None, typer.Option("--identity", "-i", help="Private key to sign in with.")
    ] = None,
    wait: WaitOption = BOOT_SECONDS,
) -> None:
    """Sign in to a machine, or run a command on it. Its host key is saved at the first sign-in.

    A guest accepts ssh some time after its machine runs; the command waits for it, unless your ssh
    configuration reaches the machine through a proxy (ProxyJump, ProxyCommand).

    Examples:

      neo compute instance ssh web
      neo compute instance ssh web -- uname -a
    """
    program = shutil.which("ssh")
    if program is None:
        raise ClientError(
            "FAILED_PRECONDITION", "ssh is not installed", "Run `apt-get install openssh-client`"
        )
    instance = cloud.find(INSTANCES, name)
    if is_emulated(cloud.profile):
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Instance {name} is emulated: no machine runs behind it, so there is nothing to sign in to",
            "For real machines start a cloud with `neo up`",
        )
    host = _host_of(instance)
    if state_of(instance) != "RUNNING" or not host:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Instance {name} is {state_of(instance)}",
            f"Start it with `neo compute instance start {quote(name)}`",
        )
    if wait and has_proxy(program, f"{user}@{host}"):
        warn(f"Your ssh configuration reaches {host} through a proxy: ssh does not wait until it boots.")
    else:
        _wait_for_ssh(cloud, name, host, wait)
    options = ["-o", f"UserKnownHostsFile={quoted(str(_known_hosts(instance)))}"]
    options += ["-o", "StrictHostKeyChecking=accept-new", "-o", f"ConnectTimeout={LOGIN_SECONDS}"]
    if identity is not None:
        options += ["-i", str(identity.absolute()), "-o", "IdentitiesOnly=yes"]
    os.execv(program, ["ssh", *options, "--", f"{user}@{host}", *(command or ())])


def _wait_for_ssh(cloud: ProjectClient, name: str, host: str, seconds: int) -> None:
    """Wait until an ssh server answers. Raises ClientError if none does."""
    if not seconds or accepts_ssh(host):
        return
    serial_log = f"neo compute instance serial-log {quote(name)} --follow"
    deadline = cloud.client.clock() + seconds
    with stage(f"Wait for the guest of {name}; {serial_log} shows it boot"):
        while not accepts_ssh(host):
            if cloud.client.clock() >= deadline:
                raise ClientError(
                    "UNAVAILABLE",
                    f"{name} does not accept ssh on {host} after {duration(seconds)}",
                    f"See its console ({serial_log}); do its security groups let port {SSH_PORT} in?",
                )
            cloud.client.sleep(FOLLOW_SECONDS)


def serial_log(
    cloud: Cloud,
    name: NameArgument,
    tail: Annotated[int, typer.Option(help="Number of last lines to print; 0: all.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new output.")] = False,
) -> None:
    """Print the output of a machine's serial console since its last start.

    Example:

      neo compute instance serial-log web --tail 50
    """
    request: JsonObject = {"instance_id": cloud.find(INSTANCES, name).metadata.id, "tail": tail}
    while True:
        answer = cloud.client.call(f"{MACHINES}/ReadSerialLog", request)
        for line in answer.lines:
            echo(line)
        if not follow and (tail or not answer.lines):
            if not (answer.lines or request.get("first_line")):
                say("The log is still empty.")
            return
        request |= {"tail": 0, "first_line": answer.next_line}
        if follow and not answer.lines:
            cloud.client.sleep(FOLLOW_SECONDS)


def user_data(user: str, keys: list[str]) -> str:
    """Return a cloud-config that creates this account, with these keys and sudo."""
    account = {
        "name": user,
        "shell": "/bin/bash",
        "sudo": "ALL=(ALL) NOPASSWD:ALL",
        "ssh_authorized_keys": keys,
    }
    return "#cloud-config\n" + yaml.safe_dump({"users": [account]}, sort_keys=False)


def _spec(
    cloud: ProjectClient,
    name: str,
    platform: str,
    preset: str,
    image_family: str,
    disk_size: int,
    subnet: str,
    cloud_init: str,
) -> JsonObject:
    disk = {
        "type": "NETWORK_SSD",
        "size_gibibytes": disk_size,
        "source_image_family": {"image_family": image_family},
    }
    return {
        "resources": {"platform": platform, "preset": preset},
        "boot_disk": {
            "attach_mode": "READ_WRITE",
            "managed_disk": {"name": f"{name}-boot", "spec": disk},
        },
        "network_interfaces": [
            {"name": "eth0", "subnet_id": subnet or _default_subnet(cloud), "ip_address": {}}
        ],
        "cloud_init_user_data": cloud_init,
    }


def _read(file: Path) -> JsonObject:
    """Return the spec of a file, and its metadata if it has any, with fields spelt as in the contract."""
    try:
        content = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ClientError("INVALID_ARGUMENT", f"{file} cannot be read", str(error)) from error
    whole = content if is_object(content) and "spec" in content else {"spec": content}
    if not isinstance(whole["spec"], dict):
        raise ClientError("INVALID_ARGUMENT", f"{file} contains no spec", "Write fields such as `resources:`")
    if not isinstance(whole.get("metadata") or {}, dict):
        raise ClientError(
            "INVALID_ARGUMENT",
            f"The metadata of {file} is not an object",
            "Write `metadata: {labels: {...}}`",
        )
    return with_field_names(whole, load_method(CREATE).input.DESCRIPTOR)


def _change(cloud: ProjectClient, instance_id: str, verb: str, name: str) -> None:
    operation = cloud.client.call(f"{INSTANCES}/{verb}", {"id": instance_id})
    _wait(cloud, operation, f"{verb} instance {name}")


def _wait(cloud: ProjectClient, operation: "Operation", title: str) -> None:
    try:
        finish(cloud.client, operation, title, WAIT_SECONDS)
    except KeyboardInterrupt:
        say("The operation continues in the cloud. `neo compute instance list` shows its state.")
        raise


def _known_hosts(instance: "Instance") -> Path:
    """Return a file for each machine: another machine may get its address later."""
    folder = config_file().parent / "known_hosts"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / instance.metadata.id


def _default_subnet(cloud: ProjectClient) -> str:
    """Return the default subnet, or else the oldest."""
    subnets = cloud.list_all("nebius.vpc.v1.SubnetService")
    if not subnets:
        raise ClientError(
            "FAILED_PRECONDITION", "This project has no subnet", "Create one with `neo vpc subnet create`"
        )
    default = [subnet for subnet in subnets if subnet.metadata.name.startswith("default")]
    return (default or subnets)[0].metadata.id


def _host_of(instance: "Instance") -> str:
    """Return the public address, or else the private one; "" before it is known."""
    for interface in instance.status.network_interfaces:
        address = interface.public_ip_address.address or interface.ip_address.address
        return address.partition("/")[0]
    return ""


OVERRIDES: Overrides = {
    **EXPORT_OVERRIDES,
    "platform": {"list": list_platforms},
    "instance": {
        "create": create,
        "start": start,
        "stop": stop,
        "restart": restart,
        "ssh": ssh,
        "serial-log": serial_log,
    },
}
"""Commands that replace the derived ones or are added to them."""
