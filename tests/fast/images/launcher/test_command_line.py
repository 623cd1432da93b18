"""CMP-01, CMP-13: QEMU's command line for a machine."""

import json
from pathlib import Path

import pytest
from launcher.command_line import Descriptors, Places, block_node, command_line, node_name
from launcher.desired import DesiredStateError, parse_disk, parse_machine

PLACES = Places(Path("/run/launcher"))
VARIABLES = Path("/disks/0/firmware-variables.fd")


def words(desired, firmware: str = "uefi") -> list[str]:
    variables = VARIABLES if firmware == "uefi" else None
    return command_line(parse_machine(desired), firmware, variables, PLACES, Descriptors(tap=7, kvm=8))


def options(command: list[str], name: str) -> list[str]:
    return [value for key, value in zip(command, command[1:], strict=False) if key == name]


def devices(command: list[str], driver: str) -> list[dict[str, object]]:
    found = []
    for value in options(command, "-device"):
        if value.startswith("{"):
            found.append(json.loads(value))
        else:
            first, *rest = value.split(",")
            found.append({"driver": first, **dict(part.split("=", 1) for part in rest)})
    return [device for device in found if device["driver"] == driver]


def test_golden_without_disks_and_ports(desired):
    command = words(desired)
    start = command[: command.index("-rtc") + 2]
    assert start == [
        *("qemu-system-x86_64", "-name", "computeinstance-e00one", "-nodefaults", "-no-user-config"),
        *("-display", "none", "-sandbox"),
        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
        *("-smp", "cpus=2,sockets=1", "-m", "2048M"),
        *("-accel", "tcg,thread=multi,tb-size=128", "-cpu", "max,vmx=off,svm=off"),
        *("-machine", "q35,usb=off,vmport=off,hpet=off,smm=off,i8042=off,graphics=off"),
        *("-boot", "strict=on", "-rtc", "base=utc"),
    ]
    extra = "io.systemd.stub.kernel-cmdline-extra=no_timer_check mitigations=off"
    assert options(command, "-smbios") == [f"type=11,value={extra}"]
    assert options(command, "-serial") == ["chardev:console"]
    assert options(command, "-netdev") == ["tap,id=network,fd=7"]
    (card,) = devices(command, "virtio-net-pci")
    assert card["mac"] == "52:54:00:ab:cd:ef"
    assert options(command, "-drive")[1] == f"if=pflash,unit=1,format=raw,file={VARIABLES}"


def test_kvm_uses_the_hosts_processor(desired):
    command = words(desired | {"acceleration": "kvm"})
    assert options(command, "-accel") == ["kvm,device=/dev/fdset/1"]
    assert options(command, "-add-fd") == ["fd=8,set=1"]
    assert options(command, "-cpu") == ["host,vmx=off,svm=off"], "no machines in machines"
    assert options(command, "-smbios") == []


def test_a_legacy_disk_starts_without_uefi(desired):
    assert options(words(desired, "bios"), "-drive") == []


def test_disks_are_counted_in_order_and_the_seed_comes_last(desired):
    others = [{"id": f"d{n}", "path": f"/disks/{n}/disk.qcow2", "size_bytes": 1} for n in range(1, 12)]
    command = words(desired | {"disks": [*others[:5], *desired["disks"], *others[5:]]})
    disks = devices(command, "virtio-blk-pci")
    assert disks[0] == {
        **{
            "driver": "virtio-blk-pci",
            "id": "device-computedisk-e00boot",
            "drive": "disk-computedisk-e00boot",
        },
        **{"serial": "boot", "werror": "stop", "rerror": "report", "addr": "0x4", "bootindex": 0},
    }
    assert [disk["bus"] for disk in disks[1:]] == [*(f"port{n}" for n in range(11)), "seed-port"]
    ports = devices(command, "pcie-root-port")
    assert [port["id"] for port in ports] == [*(f"port{n}" for n in range(19)), "seed-port"]
    assert len({port["addr"] for port in ports}) == len(ports) == len({port["chassis"] for port in ports})


def test_a_full_machine_has_every_device_at_a_place_of_its_own(desired):
    desired["disks"] += [{"id": f"d{n}", "path": f"/d/{n}", "size_bytes": 1} for n in range(49)]
    desired["filesystems"] = [{"tag": f"t{n}", "path": f"/f/{n}"} for n in range(10)]
    desired["gpus"] = [f"0000:0{n}:00.0" for n in range(8)]
    command = words(desired)
    found = [value for value in options(command, "-device") if "addr" in value]
    places = [
        json.loads(value)["addr"] if value.startswith("{") else value.split("addr=")[1].split(",")[0]
        for value in found
    ]
    assert len(set(places)) == len(places)
    assert all(int(place.split(".")[0], 16) < 0x1F for place in places)


def test_a_node_name_of_a_real_id_is_short_enough_for_qemu():
    one, other = "computedisk-e00abcdefghijklmnopq1", "computedisk-e00abcdefghijklmnopq2"
    assert len(node_name(one)) <= 31
    assert node_name(one) != node_name(other)


def test_a_read_only_disk_is_read_only_in_every_layer():
    node = block_node(parse_disk({"id": "d", "path": "/d", "size_bytes": 1, "read_only": True}))
    assert node["read-only"] is True
    assert node["file"]["read-only"] is True


def test_filesystems_share_the_guests_memory(desired):
    desired["filesystems"] = [{"tag": "my,data=/", "path": "/filesystems/0"}]
    command = words(desired)
    assert options(command, "-object") == ["memory-backend-memfd,id=memory,size=2048M,share=on"]
    assert options(command, "-machine")[0].endswith(",memory-backend=memory")
    (device,) = devices(command, "vhost-user-fs-pci")
    assert device["tag"] == "my,data=/"  # a user's word: it must not add an option


def test_gpus_by_vfio(desired):
    """Written and checked here; not run: that takes a machine with an IOMMU."""
    command = words(desired | {"gpus": ["0000:01:00.0", "0000:81:00.0"]})
    assert [(gpu["host"], gpu["bus"]) for gpu in devices(command, "vfio-pci")] == [
        ("0000:01:00.0", "gpu0"),
        ("0000:81:00.0", "gpu1"),
    ]


def test_a_key_is_inherited_and_never_an_argument(desired, tmp_path):
    desired["disks"][0]["encrypted"] = True
    (tmp_path / "key-computedisk-e00boot").write_text("ab" * 32)
    machine = parse_machine(desired, tmp_path)
    assert machine.boot_disk.key == "ab" * 32 and "abab" not in repr(machine)
    command = command_line(machine, "bios", None, PLACES, Descriptors(5, keys={machine.boot_disk.id: 7}))
    key = {"qom-type": "secret", "id": "key-computedisk-e00boot", "format": "raw", "file": "/proc/self/fd/7"}
    assert json.dumps(key) in options(command, "-object")
    assert '"key-secret": "key-computedisk-e00boot"' in " ".join(command)
    assert "abab" not in " ".join(command)
    assert Descriptors(5, 6, {"one": 7}).inherited == [5, 6, 7]


@pytest.mark.parametrize("content", [None, "", "ab", "zz" * 32, "ab" * 33])
def test_a_disk_without_its_key_is_refused(desired, tmp_path, content):
    desired["disks"][0]["encrypted"] = True
    if content is not None:
        (tmp_path / "key-computedisk-e00boot").write_text(content)
    with pytest.raises(DesiredStateError, match="The key of disk computedisk-e00boot"):
        parse_machine(desired, tmp_path)
