"""`ip netns add` on the host of a cloud: the namespaces of pods stay mounted once, so Podman can end them.

In a mount namespace of its own, with an empty /run, so that nothing of this machine is seen or changed. What
clouds of this machine have mounted there is unmounted in it.
"""

import subprocess
import sys

SCRIPT = """
set -e
! mountpoint -q /run/netns || umount --lazy --recursive /run/netns
mounts() {{ grep -c " /run/netns" /proc/self/mountinfo || true; }}
before=$(mounts)
mount -t tmpfs none /run
{prepare}
touch /run/netns/pod
mount --bind /proc/self/ns/net /run/netns/pod
ip netns add of-the-operator
umount /run/netns/pod
rm /run/netns/pod
ip netns delete of-the-operator
{leave}
echo "$(($(mounts) - before)) more"
"""


def python(statement: str) -> str:
    return (
        f"{sys.executable} -c 'from neocloud.engines.podman.network.named_namespaces import *; {statement}'"
    )


def run(prepare: str, leave: str = "true") -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(prepare=prepare, leave=leave)
    command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_namespace_of_a_pod_is_mounted_once_and_nothing_is_left() -> None:
    ended = run(python("share_folder()"), python("leave_folder()"))
    assert (ended.returncode, ended.stdout.strip()) == (0, "0 more"), ended.stderr


def test_without_it_the_namespace_of_the_pod_is_mounted_twice() -> None:
    ended = run("mkdir /run/netns")
    assert ended.returncode != 0 and "busy" in ended.stderr, "share_folder is needed no more"


def test_namespaces_that_are_there_stay_in_sight() -> None:
    ended = run(f"mkdir /run/netns; touch /run/netns/other; {python('share_folder()')}; ls /run/netns")
    assert "other" in ended.stdout and "busy" in ended.stderr
