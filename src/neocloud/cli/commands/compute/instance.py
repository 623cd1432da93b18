"""`neo compute instance`: create a machine with an SSH key, restart it, sign in, read its serial log."""

import os
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from neocloud.cli.commands.compute.lookup import (
    MACHINES,
    SERVICE,
    Place,
    find_instance,
    first_subnet,
    open_place,
    public_host,
    state_of,
)
from neocloud.cli.commands.slurm.keys import default_public_keys, read_public_keys
from neocloud.cli.commands.slurm.lookup import ProjectOption
from neocloud.cli.commands.slurm.shapes import choose_shape
from neocloud.cli.output import Format, OutputOption, fields_table, say, show
from neocloud.cli.progress import stage
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.client.profiles import config_file
from neocloud.core import contract

WAIT_SECONDS = 900.0
FOLLOW_SECONDS = 1.0
DEFAULT_USER = "ubuntu"
DEFAULT_FAMILY = "ubuntu24.04-driverless"
NameArgument = Annotated[str, typer.Argument(help="Name or id of the instance.")]
UserOption = Annotated[str, typer.Option(help="User account in the guest.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the derived ones and replace those that need other options."""
    group = next(info.typer_instance for info in app.registered_groups if info.name == "instance")
    assert group is not None
    own = {"create": create, "start": start, "stop": stop}
    group.registered_commands[:] = [each for each in group.registered_commands if each.name not in own]
    for name, command in own.items():
        group.command(name)(command)
    group.command("restart")(restart)
    group.command("ssh")(ssh)
    group.command("serial-log")(serial_log)


def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the instance.")],
    platform: Annotated[str, typer.Option(help="Platform. Default: one without GPUs.")] = "",
    preset: Annotated[str, typer.Option(help="CPUs, memory and GPUs. Default: the smallest.")] = "",
    image_family: Annotated[str, typer.Option(help="Family of the boot disk's image.")] = DEFAULT_FAMILY,
    disk_size: Annotated[int, typer.Option(help="GiB of the boot disk.")] = 10,
    subnet: Annotated[str, typer.Option(help="Subnet id. Default: the project's default subnet.")] = "",
    ssh_key: Annotated[
        list[Path] | None,
        typer.Option(help="Public key file to authorize; repeatable. Default: your keys in ~/.ssh."),
    ] = None,
    user: UserOption = DEFAULT_USER,
    public_ip: Annotated[bool, typer.Option("--public-ip", help="Assign a public address.")] = False,
    preemptible: Annotated[
        bool, typer.Option("--preemptible", help="Create a cheaper machine that may be stopped at any time.")
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", help="Read the spec from a YAML or JSON file; it overrides the options."
        ),
    ] = None,
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Create a machine that accepts your SSH key, and wait until it runs.

    Examples:

      neo compute instance create web --preset 2vcpu-4gb --public-ip
      neo compute instance create web --file machine.yaml
    """
    place = open_place(context, project)
    platform, preset = choose_shape(place, platform, preset)
    keys = read_public_keys(default_public_keys(Path.home() / ".ssh") if ssh_key is None else ssh_key)
    interface: dict[str, Any] = {
        "name": "eth0",
        "subnet_id": subnet or first_subnet(place),
        "ip_address": {},
    }
    if public_ip:
        interface["public_ip_address"] = {}
    disk = {
        "type": "NETWORK_SSD",
        "size_gibibytes": disk_size,
        "source_image_family": {"image_family": image_family},
    }
    spec: dict[str, Any] = {
        "resources": {"platform": platform, "preset": preset},
        "boot_disk": {
            "attach_mode": "READ_WRITE",
            "managed_disk": {"name": f"{name}-boot", "spec": disk},
        },
        "network_interfaces": [interface],
        "cloud_init_user_data": user_data(user, keys),
    }
    if preemptible:
        spec |= {"preemptible": {"on_preemption": "STOP"}, "recovery_policy": "FAIL"}
    spec |= _spec_of(file) if file is not None else {}
    request = {"metadata": {"parent_id": place.project, "name": name}, "spec": spec}
    operation = place.client.call(f"{SERVICE}/Create", request)
    shape = spec.get("resources") or {}
    _wait(place, operation, f"Instance {name}: {shape.get('preset')} on {shape.get('platform')}")
    instance = place.client.call(f"{SERVICE}/Get", {"id": operation.resource_id})
    if not keys:
        say("Nobody can sign in with ssh: no key was given and ~/.ssh contains none.")
    if output is not Format.TABLE:
        show(output, contract.to_dict(instance), fields_table(()))
        return
    echo(f"Instance {name} is {state_of(instance)}. The guest may need a moment before it accepts ssh.")
    echo(f"Sign in: neo compute instance ssh {name}   or: ssh {user}@{public_host(instance)}")


def start(context: typer.Context, name: NameArgument, project: ProjectOption = "") -> None:
    """Start a stopped machine and wait until it runs.

    Example:

      neo compute instance start web
    """
    place = open_place(context, project)
    _change(place, find_instance(place, name).metadata.id, "Start", name)
    echo(f"Instance {name} is running.")


def stop(context: typer.Context, name: NameArgument, project: ProjectOption = "") -> None:
    """Shut a machine down gracefully; its disks and addresses are kept, and only disks are charged.

    Example:

      neo compute instance stop web
    """
    place = open_place(context, project)
    _change(place, find_instance(place, name).metadata.id, "Stop", name)
    echo(f"Instance {name} is stopped.")


def restart(context: typer.Context, name: NameArgument, project: ProjectOption = "") -> None:
    """Stop a machine gracefully and start it again; its disks and addresses are kept.

    Example:

      neo compute instance restart web
    """
    place = open_place(context, project)
    instance_id = find_instance(place, name).metadata.id
    _change(place, instance_id, "Stop", name)
    _change(place, instance_id, "Start", name)
    echo(f"Instance {name} is running.")


def ssh(
    context: typer.Context,
    name: NameArgument,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="Command to run, after `--`. Default: a shell.", show_default=False),
    ] = None,
    user: UserOption = DEFAULT_USER,
    identity: Annotated[
        Path | None, typer.Option("--identity", "-i", help="Private key to sign in with.")
    ] = None,
    project: ProjectOption = "",
) -> None:
    """Sign in to a machine, or run a command on it. Its host key is saved at the first sign-in.

    Examples:

      neo compute instance ssh web
      neo compute instance ssh web -- uname -a
    """
    program = shutil.which("ssh")
    if program is None:
        raise ClientError(
            "FAILED_PRECONDITION", "ssh is not installed", "Run `apt-get install openssh-client`"
        )
    instance = find_instance(open_place(context, project), name)
    host = public_host(instance)
    if state_of(instance) != "RUNNING" or not host:
        raise ClientError(
            "FAILED_PRECONDITION",
            f"Instance {name} is {state_of(instance)}",
            f"Start it with `neo compute instance start {name}`",
        )
    options = ["-o", f"UserKnownHostsFile={_known_hosts(instance)}", "-o", "StrictHostKeyChecking=accept-new"]
    if identity is not None:
        options += ["-i", str(identity.absolute()), "-o", "IdentitiesOnly=yes"]
    os.execv(program, ["ssh", *options, "--", f"{user}@{host}", *(command or ())])


def serial_log(
    context: typer.Context,
    name: NameArgument,
    tail: Annotated[int, typer.Option(help="Number of last lines to print; 0: all.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new output.")] = False,
    project: ProjectOption = "",
) -> None:
    """Print the output of a machine's serial console since its last start.

    Example:

      neo compute instance serial-log web --tail 50
    """
    place = open_place(context, project)
    request: dict[str, Any] = {"instance_id": find_instance(place, name).metadata.id, "tail": tail}
    while True:
        answer = place.client.call(f"{MACHINES}/ReadSerialLog", request)
        for line in answer.lines:
            echo(line)
        if not follow and (tail or not answer.lines):
            return
        request |= {"tail": 0, "first_line": answer.next_line}
        if follow and not answer.lines:
            place.client.sleep(FOLLOW_SECONDS)


def user_data(user: str, keys: list[str]) -> str:
    """Return a cloud-config that creates this account, with these keys and sudo."""
    account = {
        "name": user,
        "shell": "/bin/bash",
        "sudo": "ALL=(ALL) NOPASSWD:ALL",
        "ssh_authorized_keys": keys,
    }
    return "#cloud-config\n" + yaml.safe_dump({"users": [account]}, sort_keys=False)


def _spec_of(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ClientError("INVALID_ARGUMENT", f"{file} cannot be read", str(error)) from error
    spec = content.get("spec", content) if isinstance(content, dict) else None
    if not isinstance(spec, dict):
        raise ClientError("INVALID_ARGUMENT", f"{file} contains no spec", "Write fields such as `resources:`")
    return spec


def _change(place: Place, instance_id: str, verb: str, name: str) -> None:
    operation = place.client.call(f"{SERVICE}/{verb}", {"id": instance_id})
    _wait(place, operation, f"{verb} instance {name}")


def _wait(place: Place, operation: Any, title: str) -> None:
    try:
        with stage(title) as show_detail:
            place.client.wait(
                operation,
                on_progress=lambda latest: show_detail(latest.progress_tracker.description),
                timeout_seconds=WAIT_SECONDS,
            )
    except KeyboardInterrupt:
        say("The operation continues in the cloud. `neo compute instance list` shows its state.")
        raise


def _known_hosts(instance: Any) -> Path:
    """Return a file for each machine: another machine may get its address later."""
    folder = config_file().parent / "known_hosts"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / instance.metadata.id
