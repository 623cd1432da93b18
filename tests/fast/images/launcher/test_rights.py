"""M15: which rights the programs of a machine run with."""

import os
from pathlib import Path

import pytest
from launcher import filesystems, rights
from launcher.desired import Filesystem


def test_what_works_on_a_guests_data_has_no_rights():
    assert rights.unprivileged(["qemu-img", "info"]) == [
        *("setpriv", "--reuid=60700", "--regid=60700", "--clear-groups", "--no-new-privs"),
        *("--inh-caps=-all", "--bounding-set=-all", "--", "qemu-img", "info"),
    ]


def test_virtiofsd_is_kept_in_its_folder():
    command = filesystems.virtiofsd_command(Filesystem("data", Path("/filesystems/0")), Path("/run/s"))
    assert {"--sandbox=chroot", "--seccomp=kill", "--modcaps=-mknod"} <= set(command)
    bounding = next(word for word in command if word.startswith("--bounding-set="))
    assert "net_admin" not in bounding and "sys_admin" not in bounding and "mknod" not in bounding


def test_a_link_is_given_to_nobody(tmp_path):
    (tmp_path / "disk.qcow2").symlink_to("/etc/passwd")
    with pytest.raises(rights.RightsError, match="is a link"):
        rights.give(tmp_path / "disk.qcow2")


def test_a_strict_folder_lets_qemu_through(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    rights.let_through(folder)
    assert folder.stat().st_mode & 0o777 == 0o711


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners")
def test_a_file_becomes_qemus_own_and_a_device_of_the_host_does_not(tmp_path):
    file = tmp_path / "seed.img"
    file.touch()
    rights.give(file, 0o400)
    found = file.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (rights.QEMU_ID, rights.QEMU_ID, 0o400)
    with pytest.raises(rights.RightsError, match="host's own node"):
        rights.give_device(file)
