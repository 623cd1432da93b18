"""`neo storage` as people use it: signed in with a password, without any access key."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from pathlib import Path

import httpx
import pytest

from neocloud.testing.emulator import Emulator
from neocloud.testing.waiting import wait_until
from tests.contract_cache import cache_with_contract
from tests.leftovers import RUN
from tests.neo_server import program

PASSWORD = "correct horse battery staple"


def environment_of(home: Path, cloud: Emulator | None) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == RUN or not name.startswith(("AWS_", "NEOCLOUD"))
    }
    own = {"HOME": home, "XDG_CONFIG_HOME": home, "XDG_CACHE_HOME": cache_with_contract(home / ".cache")}
    environment = {**kept, **{name: str(folder) for name, folder in own.items()}, "NO_COLOR": "1"}
    return environment | (cloud.environment if cloud else {})


def neo(
    home: Path, *arguments: str, cloud: Emulator | None = None, text: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run `neo` as a person of their own, or with `cloud` as its operator."""
    command = [program(), *arguments]
    environment = environment_of(home, cloud)
    return subprocess.run(command, env=environment, input=text, capture_output=True, text=True, check=False)


def test_a_person_copies_with_their_own_sign_in_until_they_sign_out(
    neocloud_emulator: Emulator, tmp_path: Path, new_name: Callable[[], str]
) -> None:
    cloud, bucket, email = neocloud_emulator, new_name(), f"{new_name()}@bank.example"
    user = ("user", "create", email, "--group", "editors", "--password-stdin")
    assert neo(tmp_path, *user, cloud=cloud, text=PASSWORD).returncode == 0
    signing = ("login", email, "--password-stdin", "--endpoint", cloud.endpoint)
    signed = neo(tmp_path, *signing, text=PASSWORD)
    assert signed.returncode == 0, signed.stderr
    assert neo(tmp_path, "storage", "bucket", "create", bucket).returncode == 0
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("hello")
    sent = neo(tmp_path, "storage", "sync", str(tmp_path / "data"), f"s3://{bucket}/in", "-o", "json")
    assert sent.returncode == 0 and json.loads(sent.stdout)["copied"] == 1, sent.stderr
    assert bucket in neo(tmp_path, "storage", "ls").stdout
    link = neo(tmp_path, "storage", "presign", f"s3://{bucket}/in/a.txt", "--expires-in", "7d").stdout.strip()
    assert httpx.get(link).text == "hello"
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and b"NCTK" in path.read_bytes()]
    assert not kept, "the key is in memory alone"
    assert neo(tmp_path, "logout").returncode == 0
    answer = httpx.get(link)
    while answer.status_code == 200:
        answer = httpx.get(link)
    assert answer.status_code == 403 and "InvalidAccessKeyId" in answer.text


def test_audit_events_and_bills_become_objects(
    neocloud_emulator: Emulator, tmp_path: Path, new_name: Callable[[], str]
) -> None:
    cloud, bucket = neocloud_emulator, new_name()
    assert neo(tmp_path, "storage", "bucket", "create", bucket, cloud=cloud).returncode == 0
    export = ("audit", "export", "--since", "2020-01-01", "--until", "2999-01-01")
    which = ("--filter", f"resource.metadata.name = '{bucket}'", "--to-bucket")
    for to, key in ((f"s3://{bucket}/all", "all"), (f"s3://{bucket}/logs/", "logs/audit-20200101T000000Z-*")):
        ran = neo(tmp_path, *export, *which, to, cloud=cloud)
        assert ran.returncode == 0 and not ran.stdout, ran.stderr
        written = ran.stderr.partition("Written to ")[2].split()[0].removesuffix(".")
        assert fnmatch(written, f"s3://{bucket}/{key}")
        lines = neo(tmp_path, "storage", "cp", written, "-", cloud=cloud).stdout.splitlines()
        assert [json.loads(line)["resource"]["metadata"]["name"] for line in lines] == [bucket] * len(lines)
        assert f"{len(lines)} events." in ran.stderr and lines
    days = ("--from", "2026-11-01", "--to", "2026-11-02", "--to-bucket", f"s3://{bucket}/bills/")
    assert neo(tmp_path, "billing", "report", *days, cloud=cloud).returncode == 0
    written = f"s3://{bucket}/bills/billing-20261101T000000Z-20261102T000000Z.json"
    assert json.loads(neo(tmp_path, "storage", "cp", written, "-", cloud=cloud).stdout)["currency"]
    assert neo(tmp_path, "billing", "report", "--format", "focus", *days, cloud=cloud).returncode == 0
    written = f"s3://{bucket}/bills/focus-20261101T000000Z-20261102T000000Z.csv"
    assert neo(tmp_path, "storage", "cp", written, "-", cloud=cloud).stdout.startswith("BilledCost,")
    refused = neo(tmp_path, *export, "--to-bucket", f"s3://{new_name()}-none/", cloud=cloud)
    assert refused.returncode == 3 and "There is no bucket" in refused.stderr
    refused = neo(tmp_path, *export, *which, f"s3://{bucket}/", "--cursor", "x", cloud=cloud)
    assert refused.returncode == 2 and "written whole" in refused.stderr


def test_an_export_rule_writes_by_itself(
    neocloud_emulator: Emulator, tmp_path: Path, new_name: Callable[[], str]
) -> None:
    cloud, bucket, rule = neocloud_emulator, new_name(), new_name()
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first, last = today - timedelta(days=3), today - timedelta(days=1)
    assert neo(tmp_path, "storage", "bucket", "create", bucket, cloud=cloud).returncode == 0
    what = ("--content", "FOCUS_BILL", "--schedule", "DAILY", "--start", f"{first:%Y-%m-%dT%H:%M:%SZ}")
    made = neo(
        tmp_path,
        "export",
        "rule",
        "create",
        rule,
        *what,
        "--destination",
        f"s3://{bucket}/bills",
        cloud=cloud,
    )
    assert made.returncode == 0, made.stderr

    def status() -> dict[str, str]:
        ran = neo(tmp_path, "export", "rule", "get", rule, "-o", "json", cloud=cloud)
        return json.loads(ran.stdout)["status"]

    wait_until(
        lambda: status().get("written_until", "") >= f"{last:%Y-%m-%d}", lambda: f"the export: {status()}"
    )
    shown = neo(tmp_path, "storage", "ls", f"s3://{bucket}/bills/", "--recursive", cloud=cloud).stdout
    assert f"focus-{first:%Y%m%d}T000000Z-" in shown and shown.count("focus-") >= 2, shown
    newest = neo(tmp_path, "storage", "cp", status()["last_object"], "-", cloud=cloud).stdout
    assert newest.startswith("BilledCost,BillingAccountId,")
    assert neo(tmp_path, "export", "rule", "delete", rule, "--yes", cloud=cloud).returncode == 0


def is_mounted(folder: Path) -> bool:
    return f" {folder} " in Path("/proc/self/mountinfo").read_text()


def processes_of(folder: Path) -> list[int]:
    """Return the processes with the folder among their arguments, and the shells that watch them."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(folder) in each.read_bytes().split(b"\0"):
                found.append(int(each.parent.name))
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = each.read_bytes().split(b"\0")
            if words[:2] == [b"sh", b"-c"] and words[2].startswith(b"read -r _;") and int(words[3]) in found:
                found.insert(0, int(each.parent.name))
    return found


@pytest.fixture
def mounted(
    neocloud_emulator: Emulator, tmp_path: Path, new_name: Callable[[], str]
) -> Iterator[tuple[str, Path]]:
    """A bucket, and the folder where the test mounts it."""
    if shutil.which("rclone") is None or shutil.which("fusermount") is None:
        pytest.skip("rclone or fuse3 is not installed")
    bucket, folder = new_name(), tmp_path / "a mounted folder"
    folder.mkdir()
    assert neo(tmp_path, "storage", "bucket", "create", bucket, cloud=neocloud_emulator).returncode == 0
    put = neo(tmp_path, "storage", "cp", "-", f"s3://{bucket}/in/one", cloud=neocloud_emulator, text="1")
    assert put.returncode == 0, put.stderr
    yield bucket, folder
    subprocess.run(["fusermount", "-u", "-z", "--", str(folder)], capture_output=True, check=False)


def test_a_bucket_is_mounted_until_it_is_unmounted(
    neocloud_emulator: Emulator, tmp_path: Path, mounted: tuple[str, Path]
) -> None:
    (bucket, folder), cloud = mounted, neocloud_emulator
    cache = ("--cache", str(tmp_path / "cache"), "--cache-size", "1G")
    ran = neo(tmp_path, "storage", "mount", f"{bucket}/in", str(folder), *cache, cloud=cloud)
    assert ran.returncode == 0 and "neo storage unmount" in ran.stderr, ran.stderr
    assert os.path.ismount(folder)
    assert (folder / "one").read_text() == "1"
    listed = json.loads(neo(tmp_path, "storage", "mounts", "-o", "json", cloud=cloud).stdout)
    (found,) = [each for each in listed if each["folder"] == str(folder)]
    log = Path(found.pop("log"))
    assert found == {
        "folder": str(folder),
        "bucket": f"s3://{bucket}/in",
        "access": "read-only",
        "state": "mounted",
    }
    assert log.stat().st_mode & 0o777 == 0o600
    again = neo(tmp_path, "storage", "mount", bucket, str(folder), cloud=cloud)
    assert again.returncode == 7 and f"s3://{bucket}/in is mounted at" in again.stderr
    (tmp_path / "other").mkdir()
    same = neo(tmp_path, "storage", "mount", f"{bucket}/in", str(tmp_path / "other"), *cache, cloud=cloud)
    assert same.returncode == 7 and "uses the cache" in same.stderr
    held = (folder / "one").open()
    with held:
        busy = neo(tmp_path, "storage", "unmount", str(folder), cloud=cloud)
        assert busy.returncode == 1 and "is in use" in busy.stderr
    ended = neo(tmp_path, "storage", "unmount", str(folder), cloud=cloud)
    assert ended.returncode == 0, ended.stderr
    assert not os.path.ismount(folder)
    wait_until(lambda: not processes_of(folder), "the processes to end")
    assert "was unmounted" in log.read_text()
    nothing = neo(tmp_path, "storage", "unmount", str(folder), cloud=cloud)
    assert nothing.returncode == 3 and "Nothing is mounted" in nothing.stderr


def test_a_mount_that_is_interrupted_while_it_starts_leaves_nothing(
    neocloud_emulator: Emulator, tmp_path: Path, mounted: tuple[str, Path]
) -> None:
    bucket, folder = mounted
    command = [sys.executable, "-m", "neocloud.cli.main", "storage", "mount", bucket, str(folder)]
    environment = environment_of(tmp_path, neocloud_emulator)
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as mounting:
        wait_until(lambda: len(processes_of(folder)) > 1, "the process in the background")
        mounting.send_signal(signal.SIGINT)
        _, said = mounting.communicate()
    assert mounting.returncode == 130 and "was unmounted" in said, said
    wait_until(lambda: not processes_of(folder), "the processes to end")
    assert not os.path.ismount(folder)


def test_what_a_kill_leaves_is_seen_and_cleaned(
    neocloud_emulator: Emulator, tmp_path: Path, mounted: tuple[str, Path]
) -> None:
    (bucket, folder), cloud = mounted, neocloud_emulator
    assert neo(tmp_path, "storage", "mount", bucket, str(folder), cloud=cloud).returncode == 0
    for each in processes_of(folder):  # neo, rclone, and what would unmount after them
        os.kill(each, signal.SIGKILL)
    wait_until(lambda: not processes_of(folder), "the processes to end")
    listed = json.loads(neo(tmp_path, "storage", "mounts", "-o", "json", cloud=cloud).stdout)
    assert [each["state"] for each in listed if each["folder"] == str(folder)] == ["stale"]
    again = neo(tmp_path, "storage", "mount", bucket, str(folder), cloud=cloud)
    assert again.returncode == 7 and "rclone is gone" in again.stderr and "unmount" in again.stderr
    assert neo(tmp_path, "storage", "unmount", str(folder), cloud=cloud).returncode == 0
    assert os.listdir(folder) == []
    assert neo(tmp_path, "storage", "mount", bucket, str(folder), cloud=cloud).returncode == 0
    assert os.listdir(folder) == ["in"]
    assert neo(tmp_path, "storage", "unmount", str(folder), cloud=cloud).returncode == 0


def test_an_image_is_exported_and_downloaded(
    neocloud_emulator: Emulator, tmp_path: Path, new_name: Callable[[], str]
) -> None:
    cloud, bucket, name = neocloud_emulator, new_name(), "ubuntu24.04-driverless"
    assert neo(tmp_path, "storage", "bucket", "create", bucket, cloud=cloud).returncode == 0
    target = f"s3://{bucket}/out/{name}.qcow2"
    export = ("compute", "image", "export")
    ran = neo(tmp_path, *export, name, target, "--name", "golden", "-o", "json", cloud=cloud)
    assert ran.returncode == 0, ran.stderr
    file = tmp_path / "disk.qcow2"
    assert neo(tmp_path, "storage", "cp", target, str(file), cloud=cloud).returncode == 0
    facts, content = json.loads(ran.stdout), file.read_bytes()
    assert (facts["size_bytes"], facts["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert content.startswith(b"QFI\xfb")
    other = f"s3://{bucket}/other"
    assert neo(tmp_path, "storage", "cp", "-", other, cloud=cloud, text="mine").returncode == 0
    refused = neo(tmp_path, *export, name, other, cloud=cloud)
    assert refused.returncode and "nothing is replaced" in refused.stderr
    for wrong in ("./disk.qcow2", f"s3://{bucket}", f"s3://{bucket}/folder/"):
        refused = neo(tmp_path, *export, name, wrong, cloud=cloud)
        assert refused.returncode == 2 and "does not name an object" in refused.stderr, refused.stderr
    absent = neo(tmp_path, *export, "absent", target, cloud=cloud)
    assert absent.returncode == 3 and "There is no image 'absent'" in absent.stderr
    assert neo(tmp_path, "compute", "disk-export", "delete", "golden", "--yes", cloud=cloud).returncode == 0
    assert neo(tmp_path, "storage", "ls", target, cloud=cloud).stdout, "the object stays"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_bucket_is_mounted_until_the_command_ends(
    neocloud_emulator: Emulator, tmp_path: Path, new_name: Callable[[], str], number: signal.Signals
) -> None:
    if shutil.which("rclone") is None or shutil.which("fusermount") is None:
        pytest.skip("rclone or fuse3 is not installed")
    cloud, bucket, folder = neocloud_emulator, new_name(), tmp_path / "mounted"
    folder.mkdir()
    assert neo(tmp_path, "storage", "bucket", "create", bucket, cloud=cloud).returncode == 0
    program = (sys.executable, "-m", "neocloud.cli.main")
    command = [*program, "storage", "mount", f"s3://{bucket}", str(folder), "--foreground"]
    environment = environment_of(tmp_path, cloud)
    for more in ((), ("--foreground",)):
        refused = neo(tmp_path, "storage", "mount", f"{bucket}-none", str(folder), *more, cloud=cloud)
        assert refused.returncode == 3 and refused.stderr.count("There is no bucket") == 1
    mounting = subprocess.Popen([*command, "--write"], env=environment, stderr=subprocess.PIPE, text=True)
    assert mounting.stderr is not None
    with mounting.stderr as said:
        assert "for writing; Ctrl-C unmounts it" in said.readline()
        (folder / "new").write_text("hello")
        mounting.send_signal(number)
        assert mounting.wait() == {signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}[number]
    wait_until(lambda: not is_mounted(folder), "the folder to be unmounted")
    assert neo(tmp_path, "storage", "cp", f"s3://{bucket}/new", "-", cloud=cloud).stdout == "hello"
