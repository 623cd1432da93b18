"""`neo storage` as people use it: signed in with a password, without any access key."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx

from neocloud.testing.emulator import Emulator

PASSWORD = "correct horse battery staple"


def neo(
    home: Path, *arguments: str, cloud: Emulator | None = None, text: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run `neo` as a person of their own, or with `cloud` as its operator."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "NEOCLOUD"))}
    environment = {**kept, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "neocloud.cli.main", *arguments]
    environment |= cloud.environment if cloud else {}
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
