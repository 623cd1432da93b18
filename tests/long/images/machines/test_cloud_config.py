"""User data of a machine takes effect: a test for each module of the image's cloud-init that needs no
network. One machine for all of them, and under emulation where there is no KVM.
"""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from neocloud.engines.base import Reference
from neocloud.engines.podman.host import find_acceleration
from neocloud.services.compute.render import DiskView, VolumeView, volume_objects
from neocloud.services.compute.rules.user_data import complete_user_data, user_data_violations
from tests.e2e.images.machines.bench import ADDRESS, DISK, KEY, MACHINE, MachineBench
from tests.e2e.images.machines.conftest import built
from tests.e2e.ssh import ssh_until
from tests.long.images.machines.every_module import PASSWORD, user_data

pytestmark = pytest.mark.asyncio(loop_scope="module")

GIB, BOOT_SECONDS = 2**30, 900.0
DATA = "computedisk-e00moduledatadisk"

EFFECTS = [
    ("bootcmd", "cat /var/tmp/bootcmd", "early\nlist"),
    ("boothook", "cat /var/tmp/boothook", "hooked"),
    ("write_files", "cat /var/tmp/file; stat -c '%a %U %G' /var/tmp/file", "Grüße\nappended\n640 root adm"),
    ("write_files", "cat /var/tmp/packed-file", "packed"),
    ("write_files_deferred", "sudo cat /home/alice/late; sudo stat -c %U /home/alice/late", "late\nalice"),
    ("seed_random", "sudo cat /var/tmp/seed", "seed"),
    ("growpart, resizefs", "df -BG --output=size / | tail -n 1", "6G"),
    ("disk_setup", "lsblk -nro PARTTYPENAME,FSTYPE,LABEL /dev/disk/by-id/virtio-data | wc -l", "3"),
    ("disk_setup", "lsblk -nro FSTYPE,LABEL /dev/disk/by-id/virtio-data-part1", "ext4 mine"),
    ("mounts", "findmnt -nro TARGET,FSTYPE /data; grep -c noatime,nofail /etc/fstab", "/data ext4\n1"),
    ("swap", "swapon --noheadings --show=NAME,SIZE --bytes | awk '{print $1}'", "/swapfile"),
    ("set_hostname", "hostname; hostname --fqdn", "named-by-config\nnamed-by-config.example.org"),
    ("update_etc_hosts", "grep -c 'named-by-config.example.org named-by-config' /etc/hosts", "1"),
    (
        "ca_certs",
        "openssl storeutl -noout -text -certs /etc/ssl/certs/ca-certificates.crt"
        " | grep -c 'Subject: CN *= *Authority of a test'",
        "1",
    ),
    ("users_groups", "getent passwd alice", "alice:x:4321:4321:Alice:/home/alice:/bin/sh"),
    ("users_groups", "id -nG alice; getent group guild | cut -d: -f1,4", "alice labor\nguild:root"),
    ("users_groups", "sudo -u alice sudo -n id -u", "0"),
    (
        "set_passwords",
        "crypted=$(sudo getent shadow alice | cut -d: -f2); "
        f"echo '{PASSWORD}' | su alice -c 'id -u' 2>/dev/null; [ ${{#crypted}} -gt 20 ] && echo kept",
        "4321\nkept",
    ),
    ("set_passwords", "sudo sshd -T | grep -i ^passwordauthentication", "passwordauthentication yes"),
    ("ssh", "cut -d' ' -f3 /etc/ssh/ssh_host_ed25519_key.pub", "mine"),
    ("ssh", "ls /etc/ssh/ssh_host_*_key.pub | wc -l; sudo sshd -t && echo ok", "1\nok"),
    ("ssh", "sudo grep -c command= /root/.ssh/authorized_keys", "0"),
    ("ssh", "sudo grep -c ^ssh-ed25519 /root/.ssh/authorized_keys /home/alice/.ssh/authorized_keys"
            " | cut -d: -f2", "1\n1"),
    ("locale", "locale -a | grep -ci en_GB.utf8; . /etc/default/locale; echo $LANG", "1\nen_GB.UTF-8"),
    ("keyboard", "grep XKBLAYOUT /etc/default/keyboard", 'XKBLAYOUT="de"'),
    ("timezone", "cat /etc/timezone; date +%Z | cut -c1,2; readlink -f /etc/localtime",
     "Pacific/Chatham\n+1\n/usr/share/zoneinfo/Pacific/Chatham"),
    ("ntp", "systemctl is-active systemd-timesyncd; timedatectl show-timesync -p SystemNTPServers --value",
     "active\ntime.example.org"),
    ("apt_configure", "apt-config dump | grep -E '^(APT::Get::Assume-Yes|Acquire::http::Proxy) '",
     'APT::Get::Assume-Yes "true";\nAcquire::http::Proxy "http://proxy.example.org:3128";'),
    ("apt_configure", "grep -rhoE 'http://[a-z]+.example.org/debian' /etc/apt/sources.list* | sort -u",
     "http://mirror.example.org/debian\nhttp://packages.example.org/debian\nhttp://security.example.org/debian"),
    ("apt_configure", "grep -rhc packages.example.org /etc/apt/sources.list.d/mine.list; "
     "file=$(grep -o '/[^]]*gpg' /etc/apt/sources.list.d/mine.list); [ -s $file ] && echo key", "1\nkey"),
    ("apt_configure", "sudo debconf-show demonstration", "* demonstration/question: answer"),
    ("apt_pipelining", "apt-config dump | grep Pipeline-Depth", 'Acquire::http::Pipeline-Depth "5";'),
    ("runcmd", "cat /var/tmp/runcmd", "named-by-config"),
    ("phone_home", "grep -o instance_id=[a-z0-9-]* /var/tmp/phoned; grep -c pub_key_ed25519 /var/tmp/phoned",
     f"instance_id={MACHINE}\n1"),
    ("scripts_user", "cat /var/tmp/shellscript /var/tmp/packed", "Grüße\nunpacked"),
    ("scripts_per_*", "cat /var/tmp/shellscript-per-boot /var/tmp/shellscript-per-instance"
     " /var/tmp/shellscript-per-once", "Grüße\nGrüße\nGrüße"),
    ("templates", "cat /var/tmp/template", MACHINE),
    ("part-handler", "cat /var/tmp/handled", "in my own format"),
    ("final_message", "sudo grep -c 'all is done' /var/log/cloud-init-output.log", "1"),
    ("power_state_change", "sudo grep MODE /run/systemd/shutdown/scheduled", "MODE=poweroff"),
]  # fmt: skip
"""The module or form, what is asked in the machine, and what it prints."""
NEED_NETWORK = {
    *("byobu", "chef", "fan", "landscape", "lxd", "mcollective", "package_update_upgrade_install", "puppet"),
    *("rsyslog", "salt_minion", "snap", "ssh_import_id"),
}
"""They install a package first, or fetch something."""
OF_OTHER_MACHINES = {"disable_ec2_metadata", "grub_dpkg", "install_hotplug", "reset_rmc", "scripts_vendor"}
"""There is nothing in such a machine that they could change."""
SHOWN = {
    "keys_to_console": "BEGIN SSH HOST KEY KEYS",
    "ssh_authkey_fingerprints": "Authorized keys from /home/ubuntu",
    "final_message": "all is done",
}
"""What modules write to the console, which `serial-log` shows."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def configured(
    bench: MachineBench, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[MachineBench]:
    """The machine, when cloud-init has ended."""
    built("machine", "--only", "debian13")
    text = user_data(tmp_path_factory.mktemp("keys"), bench.public_key())
    assert list(user_data_violations(text)) == []
    disks = (DiskView(DISK, "boot", 6 * GIB, key=KEY), DiskView(DATA, "data", GIB, key=KEY))
    await bench.engine.apply(volume_objects(VolumeView(DATA, GIB)))
    try:
        acceleration, _ = find_acceleration()
        changes = {"disks": disks, "acceleration": acceleration}
        await bench.start("debian13", 6 * GIB, 1024, 1, complete_user_data(text), **changes)
        ready = "test -e /run/cloud-init/result.json || exit 255"  # ssh's own code: it is tried again
        await asyncio.to_thread(ssh_until, bench.key, "ubuntu", ADDRESS, ready, seconds=BOOT_SECONDS)
        yield bench
    finally:
        await bench.remove()
        await bench.engine.remove([Reference("Namespace", DATA, DATA)])


@pytest.mark.parametrize(
    ("module", "command", "printed"), EFFECTS, ids=[f"{n} {e[0]}" for n, e in enumerate(EFFECTS)]
)
async def test_what_the_user_data_says_takes_effect(
    configured: MachineBench, module: str, command: str, printed: str
) -> None:
    said = await asyncio.to_thread(configured.ssh, f"{{ {command}; }} 2>&1; true")
    assert [line.strip() for line in said.splitlines()] == printed.splitlines(), module


async def test_no_module_failed(configured: MachineBench) -> None:
    said = json.loads(await asyncio.to_thread(configured.ssh, "cloud-init status --format json || true"))
    assert said["errors"] == []
    warnings = [text for texts in said["recoverable_errors"].values() for text in texts]
    assert [text for text in warnings if "can not phone home that data" not in text] == [], "kinds of keys"


@pytest.mark.parametrize("module", SHOWN)
async def test_the_console_shows_what_was_asked_for(configured: MachineBench, module: str) -> None:
    assert SHOWN[module] in await configured.serial_log()


async def test_each_module_of_the_distribution_is_tested_or_left_out_for_a_reason(
    configured: MachineBench,
) -> None:
    """A newer cloud-init may bring more of them."""
    ask = "import json, yaml; print(json.dumps(yaml.safe_load(open('/etc/cloud/cloud.cfg'))))"
    found = json.loads(await asyncio.to_thread(configured.ssh, f'python3 -c "{ask}"'))
    stages = (found[f"cloud_{stage}_modules"] for stage in ("init", "config", "final"))
    enabled = {name.replace("-", "_") for stage in stages for name in stage}
    tested = " ".join([*(name for name, _, _ in EFFECTS), *SHOWN, "swap"])
    tested += " update_hostname scripts_per_once scripts_per_boot scripts_per_instance"
    left = {name for name in enabled if name not in tested.replace(",", " ").split()}
    assert left == NEED_NETWORK | OF_OTHER_MACHINES
