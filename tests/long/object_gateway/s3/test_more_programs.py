"""More programs that people use, unmodified, which take minutes to install: `make clients-long` does that."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neocloud.testing.waiting import wait_until
from tests.clients import installed
from tests.fast.object_gateway.s3.served import REGION, Served
from tests.real.object_gateway.s3.test_programs import Program, home, is_multipart, secure

__all__ = ["home", "secure"]  # fixtures

DRIVER = Path(__file__).with_name("drive_clients.py")


@pytest.mark.parametrize("client", ["s3fs", "crt", "duckdb", "obstore", "minio", "torch", "pyarrow"])
def test_a_client_in_python(s3: Served, bucket: str, home: Path, client: str) -> None:
    # PyArrow is large, and there already.
    folder = installed("lm-eval" if client == "pyarrow" else "s3-python")
    environment, python = {}, str(folder / "bin" / "python")
    if client == "torch":  # PyTorch is large, and here already.
        environment = {"PYTHONPATH": str(next(folder.glob("lib/python*/site-packages")))}
        python = sys.executable
    program = Program(s3, home, python, str(DRIVER), **environment)
    program(client, s3.url, bucket, str(home))
    if client in ("crt", "torch"):
        assert is_multipart(s3, bucket, "big" if client == "crt" else "model.ckpt")


def test_s5cmd(s3: Served, home: Path) -> None:
    program = str(installed("s3-python") / "bin" / "s5cmd")
    s5cmd = Program(s3, home, program, S3_ENDPOINT_URL=s3.url)
    s5cmd("mb", "s3://s5-cmd")
    s5cmd("cp", "--part-size", "5", "big", "s3://s5-cmd/big")
    assert is_multipart(s3, "s5-cmd", "big")
    s5cmd("sync", "tree/", "s3://s5-cmd/tree/")
    s5cmd("cp", "s3://s5-cmd/*", "copy/")
    for path in ("big", "tree/one", "tree/below/two ä+"):
        source = home / path
        assert (home / "copy" / path).read_bytes() == source.read_bytes()
    s5cmd("mv", "s3://s5-cmd/tree/one", "s3://s5-cmd/moved")
    assert s5cmd("cat", "s3://s5-cmd/moved") == "1"
    (home / "tree" / "one").unlink()
    s5cmd("sync", "--delete", "tree/", "s3://s5-cmd/tree/")
    assert [line.split(maxsplit=3)[3] for line in s5cmd("ls", "s3://s5-cmd/*").splitlines()] == [
        "big",
        "moved",
        "tree/below/two ä+",
    ]
    s5cmd("rm", "s3://s5-cmd/*")
    s5cmd("rb", "s3://s5-cmd")


def test_mc(s3: Served, home: Path) -> None:
    host = s3.url.replace("://", f"://{s3.owner.aws_access_key_id}:{s3.owner.secret}@")
    program = installed("trixie") / "usr" / "bin" / "minio-client"
    mc = Program(s3, home, str(program), "--quiet", MC_HOST_cloud=host)
    mc("mb", "cloud/m-client")
    mc("mirror", "tree", "cloud/m-client/tree")
    mc("cp", "big", "cloud/m-client/big")
    assert is_multipart(s3, "m-client", "big")
    mc("cp", "cloud/m-client/big", "back")
    assert (home / "back").read_bytes() == (home / "big").read_bytes()
    with (home / "big").open("rb") as piped:
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "MC_HOST_cloud": host}
        command = [program, "--quiet", "pipe", "cloud/m-client/piped"]
        subprocess.run(command, stdin=piped, check=True, timeout=60, env=environment)
    mc("cp", "cloud/m-client/piped", "back")
    assert (home / "back").read_bytes() == (home / "big").read_bytes()
    mc("tag", "set", "cloud/m-client/big", "colour=red")
    assert "red" in mc("tag", "list", "cloud/m-client/big")
    mc("version", "enable", "cloud/m-client")
    mc("mv", "cloud/m-client/tree/one", "cloud/m-client/tree/three")
    mc("mirror", "--overwrite", "--remove", "tree", "cloud/m-client/tree")
    assert not mc("diff", "tree", "cloud/m-client/tree")
    mc("rb", "--force", "cloud/m-client")


def test_aws_cli_2(secure: Served, home: Path) -> None:
    """With its defaults: each upload has a CRC64NVME checksum, after the body where it is streamed."""
    usr = installed("trixie") / "usr"
    # The Python that it was made for, without a system around it.
    loader = [str(usr / "lib64" / "ld-linux-x86-64.so.2"), "--library-path"]
    loader += [str(usr / "lib" / "x86_64-linux-gnu"), str(usr / "bin" / "python3"), str(usr / "bin" / "aws")]
    aws = Program(
        *(secure, home, *loader),
        AWS_ENDPOINT_URL=secure.url,
        AWS_CA_BUNDLE=str(secure.authority),
        PYTHONHOME=str(usr),
        PYTHONPATH=str(usr / "lib" / "python3" / "dist-packages"),
    )
    assert aws("--version").startswith("aws-cli/2.")
    bucket = secure.make_bucket()
    (home / "big").rename(home / "tree" / "big")
    aws("s3", "sync", "tree", f"s3://{bucket}")
    assert is_multipart(secure, bucket, "big")
    for key in ("big", "one"):
        found = secure.client().head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        assert found["ChecksumCRC64NVME"] and found["ChecksumType"] == "FULL_OBJECT"
    aws("s3", "sync", f"s3://{bucket}", "back")
    for path in ("big", "below/two ä+", "one"):
        assert (home / "back" / path).read_bytes() == (home / "tree" / path).read_bytes()
    aws("s3", "rb", "--force", f"s3://{bucket}")


def test_dvc(s3: Served, bucket: str, home: Path) -> None:
    """Versions of data and models, with the files in a bucket. S3-12."""
    folder = installed("dvc")
    settings = {"DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(home / "site")}
    dvc = Program(s3, home, str(folder / "bin" / "dvc"), **settings)
    dvc("init", "--no-scm")
    dvc("remote", "add", "--default", "cloud", f"s3://{bucket}/dvc")
    dvc("remote", "modify", "cloud", "endpointurl", s3.url)
    before = {path: (home / path).read_bytes() for path in ("big", "tree/one", "tree/below/two ä+")}
    dvc("add", "big", "tree")
    dvc("push")
    assert "in sync" in dvc("status", "--cloud")
    (home / "big").unlink()
    shutil.rmtree(home / "tree")
    shutil.rmtree(home / ".dvc" / "cache")
    dvc("pull")
    assert {path: (home / path).read_bytes() for path in before} == before
    (home / "tree" / "one").write_text("11")
    dvc("commit", "--force", "tree.dvc")
    dvc("push")
    dvc("gc", "--workspace", "--cloud", "--force")  # the first version of the tree goes
    shutil.rmtree(home / ".dvc" / "cache")
    dvc("fetch")
    assert (home / "tree" / "one").read_text() == "11"


@pytest.mark.parametrize("name", ["s3fs", "rclone"])
def test_a_mount(s3: Served, bucket: str, home: Path, name: str) -> None:
    """The file systems are mounted without `neo storage mount`: they write as they like."""
    if shutil.which(name) is None or not Path("/dev/fuse").exists():
        pytest.skip(f"{name} or FUSE is not here; `make debian-test` installs the programs")
    mounted = home / "mounted"
    mounted.mkdir()
    key = {"AWS_ACCESS_KEY_ID": s3.owner.aws_access_key_id, "AWS_SECRET_ACCESS_KEY": s3.owner.secret}
    remote = f":s3,provider=Other,env_auth,force_path_style,region={REGION},endpoint='{s3.url}':{bucket}"
    commands = {
        "s3fs": ["-f", "-o", f"url={s3.url},use_path_request_style,endpoint={REGION}", bucket, str(mounted)],
        "rclone": ["mount", "--vfs-cache-mode=writes", "--vfs-write-back=100ms", remote, str(mounted)],
    }
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **key}

    def keys() -> set[str]:
        """Without those that stand for folders."""
        found = s3.client().list_objects_v2(Bucket=bucket)
        return {each["Key"] for each in found.get("Contents", ()) if not each["Key"].endswith("/")}

    def is_uploaded() -> bool:
        """rclone uploads after close() has returned, and cannot rename a file that it is uploading. Without
        a delay (`--vfs-write-back=0`) it does not repeat an upload that a change of the time broke off."""
        if keys() != {"big", "tree/one", "tree/below/two ä+"}:
            return False
        return s3.client().get_object(Bucket=bucket, Key="tree/one")["Body"].read() == b"11"

    with subprocess.Popen([name, *commands[name]], env=environment) as process:
        try:
            wait_until(lambda: os.path.ismount(mounted) or process.poll() is not None, "the mount")
            assert process.poll() is None
            shutil.copytree(home / "tree", mounted / "tree")
            shutil.copyfile(home / "big", mounted / "big")
            with (mounted / "tree" / "one").open("a") as file:
                file.write("1")
            wait_until(is_uploaded, "the uploads")
            (mounted / "tree" / "one").rename(mounted / "moved")
            (mounted / "tree" / "below" / "two ä+").unlink()
            assert (mounted / "moved").read_text() == "11"
            assert (mounted / "big").read_bytes() == (home / "big").read_bytes()
            wait_until(lambda: keys() == {"big", "moved"}, "rclone's cache to be in the bucket")
        finally:
            process.terminate()
    wait_until(lambda: not os.path.ismount(mounted), "the end of the mount")
    assert name == "rclone" or is_multipart(s3, bucket, "big")  # rclone sends less than 200 MiB whole


def test_the_sdk_for_java(s3: Served, bucket: str, home: Path) -> None:
    """S3-01."""
    if shutil.which("javac") is None:
        pytest.skip("javac is not here")
    jars = installed("aws-java") / "jars"
    source = Path(__file__).with_name("Drive.java")
    java = Program(s3, home, "java")
    java("--class-path", f"{jars}/*", str(source), s3.url, bucket, seconds=180)  # it is compiled first
    assert is_multipart(s3, bucket, "parts")
