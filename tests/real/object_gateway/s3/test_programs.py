"""Programs that people use, unmodified and with their defaults: the AWS CLI, s3cmd, rclone and restic.

`make clients` installs the AWS CLI, and the packages of the tests bring the others.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.clients import CLIENTS
from tests.fast.object_gateway.s3.served import REGION, Served, error_of, serving

MIB = 1024**2


class Program:
    """A program with an environment of its own."""

    def __init__(self, s3: Served, home: Path, path: str, *first: str, **environment: str) -> None:
        self._command = [path, *first]
        self._home = home
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LC_ALL": "C.UTF-8",
            "AWS_ACCESS_KEY_ID": s3.owner.aws_access_key_id,
            "AWS_SECRET_ACCESS_KEY": s3.owner.secret,
            "AWS_DEFAULT_REGION": REGION,
            **environment,
        }

    def __call__(self, *arguments: str, seconds: float = 60) -> str:
        """Return what it prints. It has to succeed."""
        ran = subprocess.run(
            [*self._command, *arguments],
            capture_output=True,
            text=True,
            timeout=seconds,
            cwd=self._home,
            env=self._environment,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a tree of two small files, and a file that programs send in parts."""
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "one").write_text("1")
    (tmp_path / "tree" / "below" / "two ä+").write_text("22")
    (tmp_path / "big").write_bytes(bytes(range(256)) * (17 * MIB // 256))
    return tmp_path


def is_multipart(s3: Served, bucket: str, key: str) -> bool:
    return "-" in s3.client().head_object(Bucket=bucket, Key=key)["ETag"]


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("secure"), tls=True) as served:
        yield served


def test_aws_cli(secure: Served, home: Path) -> None:
    folder = CLIENTS / "awscli"
    if not (folder / "installed.txt").exists():
        subprocess.run([ROOT / "scripts" / "install-client", "awscli"], check=True)
    environment = {"AWS_ENDPOINT_URL": secure.url, "AWS_CA_BUNDLE": str(secure.authority)}
    aws = Program(secure, home, str(folder / "bin" / "aws"), **environment)
    bucket = secure.make_bucket()
    (home / "big").rename(home / "tree" / "big")
    aws("s3", "sync", "tree", f"s3://{bucket}")
    assert is_multipart(secure, bucket, "big")
    (home / "tree" / "one").unlink()
    assert f"delete: s3://{bucket}/one" in aws("s3", "sync", "--delete", "tree", f"s3://{bucket}")
    aws("s3", "sync", f"s3://{bucket}", "back")
    for path in ("big", "below/two ä+"):
        assert (home / "back" / path).read_bytes() == (home / "tree" / path).read_bytes()
    aws("s3", "rb", "--force", f"s3://{bucket}")
    assert error_of(secure.client().head_bucket, Bucket=bucket)[0] == 404


def test_s3cmd(s3: Served, home: Path) -> None:
    host = s3.url.removeprefix("http://")
    options = f"--host={host} --host-bucket={host} --no-ssl --region={REGION}".split()
    (home / ".s3cfg").write_text(
        f"[default]\naccess_key = {s3.owner.aws_access_key_id}\nsecret_key = {s3.owner.secret}\n"
    )
    s3cmd = Program(s3, home, "s3cmd", *options)
    s3cmd("mb", "s3://s3-cmd")
    s3cmd("sync", "tree/", "s3://s3-cmd/tree/")
    s3cmd("put", "big", "s3://s3-cmd/big")
    assert is_multipart(s3, "s3-cmd", "big")
    listed = s3cmd("ls", "--recursive", "s3://s3-cmd").splitlines()
    assert [line.partition("s3://s3-cmd/")[2] for line in listed] == ["big", "tree/below/two ä+", "tree/one"]
    s3cmd("get", "s3://s3-cmd/big", "back")
    assert (home / "back").read_bytes() == (home / "big").read_bytes()
    s3cmd("del", "s3://s3-cmd/tree/one")
    s3cmd("rb", "--recursive", "--force", "s3://s3-cmd")


def test_rclone(s3: Served, home: Path) -> None:
    remote = {
        "TYPE": "s3",
        "PROVIDER": "Other",
        "ENDPOINT": s3.url,
        "REGION": REGION,
        "ENV_AUTH": "true",
    }
    rclone = Program(
        s3, home, "rclone", **{f"RCLONE_CONFIG_CLOUD_{name}": value for name, value in remote.items()}
    )
    rclone("mkdir", "cloud:r-clone")
    rclone("sync", "tree", "cloud:r-clone/tree")
    rclone("--s3-upload-cutoff", "5M", "copy", "big", "cloud:r-clone")
    assert is_multipart(s3, "r-clone", "big")
    rclone("check", "--download", "tree", "cloud:r-clone/tree")
    rclone("copyto", "cloud:r-clone/big", "back")
    assert (home / "back").read_bytes() == (home / "big").read_bytes()
    rclone("moveto", "cloud:r-clone/big", "cloud:r-clone/moved")
    (home / "tree" / "one").unlink()
    rclone("sync", "tree", "cloud:r-clone/tree")
    assert sorted(rclone("lsf", "-R", "--files-only", "cloud:r-clone").splitlines()) == [
        "moved",
        "tree/below/two ä+",
    ]
    rclone("purge", "cloud:r-clone")


def test_restic(s3: Served, home: Path) -> None:
    repository = {"RESTIC_REPOSITORY": f"s3:{s3.url}/r-estic", "RESTIC_PASSWORD": "only here"}
    restic = Program(s3, home, "restic", **repository)
    restic("init")
    restic("backup", "tree")
    restic("check", "--read-data")
    restic("restore", "latest", "--target", "restored")
    assert (home / "restored" / "tree" / "below" / "two ä+").read_text() == "22"
    restic("forget", "--prune", "latest")
