"""CMP-01: the desired state is read strictly, and errors name the field."""

import copy
import json

import pytest
from launcher.desired import DesiredStateError, parse_machine, read_desired_state


def test_a_complete_file(desired):
    machine = parse_machine(desired)
    assert (machine.id, machine.vcpus, machine.memory_mib) == ("computeinstance-e00one", 2, 2048)
    assert str(machine.interface.address) == "10.128.0.5/24"
    assert machine.interface.mac == "52:54:00:ab:cd:ef"
    assert machine.boot_disk.serial == "boot"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.pop("vcpus"), "lacks the field vcpus"),
        (lambda w: w.update(vcpus=0), "vcpus must be 1 or more"),
        (lambda w: w.update(memory_mib=64), "memory_mib must be 192 or more"),
        (lambda w: w.update(acceleration="xen"), "one of kvm, tcg"),
        (lambda w: w.update(firmware="coreboot"), "uefi or bios"),
        (lambda w: w["disks"][0].update(is_boot=False), "exactly one disk"),
        (lambda w: w["disks"].append(w["disks"][0] | {"is_boot": False}), "must differ"),
        (lambda w: w["interface"].update(address="10.128.0.500"), "wrong kind"),
        (lambda w: w.update(disks="none"), "wrong kind"),
        (lambda w: w.update(gpus=["0000:01:00.0"] * 9), "can have 8 gpus, not 9"),
    ],
)
def test_what_is_wrong_is_named(desired, change, said):
    wrong = copy.deepcopy(desired)
    change(wrong)
    with pytest.raises(DesiredStateError, match=said):
        parse_machine(wrong)


def test_a_file_that_is_missing_or_not_json(tmp_path):
    with pytest.raises(DesiredStateError, match="cannot be read"):
        read_desired_state(tmp_path / "machine.json")
    (tmp_path / "machine.json").write_text("{")
    with pytest.raises(DesiredStateError, match="not JSON"):
        read_desired_state(tmp_path / "machine.json")


def test_passwords_in_user_data_are_not_shown(desired):
    desired["user_data"] = "password: hunter2"
    assert "hunter2" not in repr(parse_machine(json.loads(json.dumps(desired))))
