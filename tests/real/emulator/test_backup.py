"""A cloud is backed up while it is written to, its machine is lost, and it continues elsewhere. Issue 10."""

import json
import subprocess
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from neocloud.testing.emulator import Emulator, connected
from neocloud.testing.waiting import wait_until
from tests.real.emulator.test_command_line import Neo, folder, neo  # noqa: F401

USER_DATA = "#cloud-config\n# MARKER-4711\n"
PASSWORD = "correct horse battery staple 4711"
PASSPHRASE = "NEOCLOUD_BACKUP_PASSPHRASE"
Ran = "subprocess.CompletedProcess[str]"


def done(ran: "subprocess.CompletedProcess[str]") -> Any:
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout) if ran.stdout.startswith(("{", "[")) else ran.stdout


def create(cloud: Emulator, noun: str, name: str, spec: dict[str, Any]) -> str:
    request = {"metadata": {"parent_id": cloud.project_id, "name": name}, "spec": spec}
    return cloud.client.call(f"nebius.compute.v1.{noun}Service/Create", request).resource_id


def disk(cloud: Emulator, name: str) -> str:
    return create(cloud, "Disk", name, {"size_gibibytes": 10, "type": "NETWORK_SSD"})


def names_of(cloud: Emulator, noun: str) -> set[str]:
    request = {"parent_id": cloud.project_id, "page_size": 1000}
    return {
        each.metadata.name
        for each in cloud.client.call(f"nebius.compute.v1.{noun}Service/List", request).items
    }


def get(cloud: Emulator, noun: str, resource_id: str) -> Any:
    return cloud.client.call(f"nebius.compute.v1.{noun}Service/Get", {"id": resource_id})


def bill(cloud: Emulator, start: datetime, end: datetime) -> list[tuple[str, str, str]]:
    request = {"parent_id": cloud.project_id, "start": start.isoformat(), "end": end.isoformat()}
    report = cloud.client.call("neocloud.billing.v1.UsageService/GetReport", request)
    return sorted((line.resource_id, line.sku, line.quantity) for line in report.lines)


def test_a_cloud_goes_on_on_another_machine(neo: Neo, folder: Path) -> None:  # noqa: F811
    old, new, file = folder / "old", folder / "new", folder / "cloud.age"
    key = ("--key-file", str(folder / "key"))
    on_old, on_new = {"NEOCLOUD_HOME": str(old)}, {"NEOCLOUD_HOME": str(new)}
    began = datetime.now(UTC).replace(microsecond=0)
    done(neo("up", "--emulator", **on_old))
    done(neo("user", "create", "alice@bank.example", "--group", "editors", "--output", "json", **on_old))
    with connected(old) as cloud:
        lost = disk(cloud, "data")
        instance = {
            "stopped": True,
            "cloud_init_user_data": USER_DATA,
            "resources": {"platform": "cpu-local", "preset": "1vcpu-1gb"},
            "boot_disk": {"attach_mode": "READ_WRITE", "existing_disk": {"id": lost}},
            "network_interfaces": [{"name": "eth0", "subnet_id": subnet(cloud), "ip_address": {}}],
        }
        machine = create(cloud, "Instance", "web", instance)
        before = names_of(cloud, "Disk")
        store_object(neo, folder, on_old)
        is_over, written = threading.Event(), list[str]()

        def write_on() -> None:
            while not is_over.is_set():
                disk(cloud, f"later-{len(written)}")
                written.append(f"later-{len(written)}")

        writer = threading.Thread(target=write_on)
        writer.start()
        try:
            wait_until(lambda: len(written) > 1, "the writer has begun")
            surely = len(written)
            made = done(neo("backup", str(file), *key, "--new-key", "--output", "json", **on_old))
            so_far = len(written)
            wait_until(lambda: len(written) > so_far, "the writer continues")
        finally:
            is_over.set()
            writer.join()
        assert made["size_bytes"] == file.stat().st_size
        at_backup = datetime.fromisoformat(made["made_at"])
        billed = bill(cloud, began, at_backup)
    objects = str(folder / "objects")
    assert done(neo("storage", "backup", objects, "--output", "json", **on_old))["copied"] == 1
    done(neo("destroy", "--yes", **on_old))
    assert not old.exists()

    checked = done(neo("restore", str(file), *key, "--check", "--output", "json", **on_new))
    assert checked["resources"] == made["resources"] and not new.exists()
    done(neo("restore", str(file), *key, **on_new))
    again = neo("restore", str(file), *key, **on_new)
    assert again.returncode == 1 and "holds a cloud already" in again.stderr
    assert done(neo("storage", "restore", objects, "--output", "json", **on_new))["versions"] == 1
    up = done(neo("up", **on_new))
    assert "nothing real runs" in up, "an emulator stays one"
    again = neo("restore", str(file), *key, **on_new)
    assert again.returncode == 1 and "holds a cloud already" in again.stderr
    with connected(new) as cloud:
        found = names_of(cloud, "Disk")
        assert before | {f"later-{number}" for number in range(surely)} <= found
        assert found <= before | set(written) | {f"later-{len(written)}"}
        assert bill(cloud, began, at_backup) == billed
        assert get(cloud, "Instance", machine).spec.cloud_init_user_data == USER_DATA
        assert get(cloud, "Instance", machine).metadata.name == "web"

        # The content of volumes is not in the backup, and the cloud says so.
        seen = wait_until(lambda: get(cloud, "Disk", lost), "the disk is lost", holds=is_broken)
        assert "is gone from the engine" in str(seen.status)
        assert disk(cloud, "after") not in {lost, machine}
        wait_until(lambda: names_of(cloud, "Disk"), holds=lambda names: "after" in names)
        cloud.client.call("nebius.compute.v1.InstanceService/Delete", {"id": machine})
        cloud.client.call("nebius.compute.v1.DiskService/Delete", {"id": lost})
        wait_until(lambda: names_of(cloud, "Disk"), holds=lambda names: "data" not in names)
    done(neo("storage", "cp", "s3://data/one.bin", str(folder / "back.bin"), **on_new))
    assert (folder / "back.bin").read_bytes() == (folder / "one.bin").read_bytes()
    users = done(neo("user", "list", "--output", "json", **on_new))
    assert "alice@bank.example" in json.dumps(users)
    done(neo("destroy", "--yes", **on_new))


def store_object(neo: Neo, folder: Path, variables: dict[str, str]) -> None:  # noqa: F811
    (folder / "one.bin").write_bytes(b"an object of 100 kB " * 5000)
    done(neo("storage", "bucket", "create", "data", **variables))
    done(neo("storage", "cp", str(folder / "one.bin"), "s3://data/one.bin", **variables))


def subnet(cloud: Emulator) -> str:
    found = cloud.client.call("nebius.vpc.v1.SubnetService/List", {"parent_id": cloud.project_id})
    return found.items[0].metadata.id


def is_broken(found: Any) -> bool:
    return (
        found.status.state
        == found.status.DESCRIPTOR.enum_types_by_name["State"].values_by_name["BROKEN"].number
    )


def test_the_command_line_says_what_is_missing(neo: Neo, folder: Path) -> None:  # noqa: F811
    file, home = str(folder / "cloud.age"), {"NEOCLOUD_HOME": str(folder / "cloud")}

    def refused(*arguments: str, **more: str) -> str:
        ran = neo(*arguments, **home, **more)
        assert ran.returncode, ran.stdout
        assert "Traceback" not in ran.stderr and "defect" not in ran.stderr
        return ran.stderr

    assert "There is no cloud in" in refused("backup", file)
    done(neo("up", "--emulator", **home))
    assert "no terminal to ask for a passphrase" in refused("backup", file)
    assert "12 are the fewest" in refused("backup", file, **{PASSPHRASE: "short"})
    assert "Add --key-file" in refused("backup", file, "--new-key")
    assert "Add --new-key to make one" in refused("backup", file, "--key-file", str(folder / "key"))
    (folder / "words").write_text("correct horse battery\n")
    (folder / "words").chmod(0o644)
    assert "open to other users" in refused("backup", file, "--passphrase-file", str(folder / "words"))
    assert not (folder / "cloud.age").exists()
    key = ("--key-file", str(folder / "key"))
    done(neo("backup", file, *key, "--new-key", **home))
    ran = neo("backup", file, *key, **home)
    assert ran.returncode == 7 and "--force" in ran.stderr
    done(neo("backup", file, *key, "--force", **home))
    assert "exists already" in refused("backup", file, *key, "--force", "--new-key")
    assert "Name the file of the key with --key-file" in refused("restore", file)
    assert "cannot be read" in refused("restore", str(folder / "none"), *key)
    (folder / "junk").write_text("junk")
    assert "not a backup of Neocloud" in refused("restore", str(folder / "junk"), *key)
    done(neo("destroy", "--yes", **home))
