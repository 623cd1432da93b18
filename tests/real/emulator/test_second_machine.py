"""A cloud that listens for other machines, used from a second network namespace: a colleague's laptop."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from neocloud.control_plane.tls import _host_name
from neocloud.server import ensure_certificate
from tests import ROOT, leftovers
from tests.two_machines import CLOUD_ADDRESS, LAPTOP_ADDRESS, Machine, two_machines

EMAIL = "alice@bank.example"


@dataclass
class Cloud:
    machine: Machine
    laptop: Machine
    home: Path
    password: str
    status: dict[str, object]

    def port(self, protocol: str) -> int:
        found = [each for each in self.status["open_ports"] if each["protocol"] == protocol]  # type: ignore[attr-defined]
        return next(each["port"] for each in found if each["address"] == CLOUD_ADDRESS)

    @property
    def url(self) -> str:
        return f"https://{CLOUD_ADDRESS}:{self.port('JSON')}"

    @property
    def fingerprint(self) -> str:
        return str(self.status["fingerprint"])

    def sign_in(self, *options: str) -> None:
        done = self.laptop.neo(
            *("login", self.url, EMAIL, "--password-stdin", "--fingerprint", self.fingerprint, *options),
            text=f"{self.password}\n",
        )
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    folder = tmp_path_factory.mktemp("machines")
    home = folder / "cloud"
    leftovers.record(home)
    with two_machines(folder) as (machine, laptop):
        try:
            started = machine.neo("up", "--emulator", "--home", str(home), "--listen", CLOUD_ADDRESS)
            assert started.returncode == 0, started.stderr
            status = machine.neo("status", "--home", str(home), "-o", "json")
            created = machine.neo("user", "create", EMAIL, "--group", "editors")
            assert created.returncode == 0, created.stderr
            yield Cloud(machine, laptop, home, created.stdout.split()[-1], json.loads(status.stdout))
        finally:
            machine.neo("destroy", "--home", str(home), "--yes")
    leftovers.forget(home)


def test_a_colleague_signs_in_and_works_from_a_laptop(cloud: Cloud) -> None:
    cloud.sign_in()
    who = cloud.laptop.neo("whoami")
    assert EMAIL in who.stdout, who.stderr
    made = cloud.laptop.neo(
        *("compute", "disk", "create", "--name", "far", "--size-gibibytes", "10", "--type", "NETWORK_SSD")
    )
    assert made.returncode == 0, made.stderr
    assert "far" in cloud.laptop.neo("compute", "disk", "list").stdout
    assert "far" in cloud.machine.neo("compute", "disk", "list").stdout


def test_a_wrong_fingerprint_is_refused_before_the_password_is_sent(cloud: Cloud) -> None:
    wrong = "AB:" * 31 + "AB"
    done = cloud.laptop.neo(
        "login", cloud.url, EMAIL, "--password-stdin", "--fingerprint", wrong, text=f"{cloud.password}\n"
    )
    assert done.returncode != 0
    assert cloud.fingerprint in done.stderr and "not the expected one" in done.stderr


def test_without_a_fingerprint_or_a_terminal_nothing_is_trusted(cloud: Cloud, tmp_path: Path) -> None:
    done = cloud.laptop.neo(
        *("login", cloud.url, EMAIL, "--password-stdin"),
        text=f"{cloud.password}\ny\ny\n",
        XDG_CONFIG_HOME=str(tmp_path),
    )
    assert done.returncode != 0
    assert cloud.fingerprint in done.stderr and "--fingerprint" in done.stderr


def test_an_authority_that_a_profile_trusts_is_not_confirmed_again(cloud: Cloud) -> None:
    cloud.sign_in()
    done = cloud.laptop.neo("login", cloud.url, EMAIL, "--password-stdin", text=f"{cloud.password}\n")
    assert done.returncode == 0, done.stderr
    assert cloud.fingerprint not in done.stderr


def test_the_certificate_of_another_authority_is_refused(cloud: Cloud, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.pem"
    made = cloud.laptop.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=foreign"),
            *("-keyout", str(tmp_path / "foreign.key"), "-out", str(foreign)),
        ]
    )
    assert made.returncode == 0, made.stderr
    done = cloud.laptop.neo(
        "login", cloud.url, EMAIL, "--password-stdin", "--ca-file", str(foreign), text=f"{cloud.password}\n"
    )
    assert done.returncode != 0 and "not trusted" in done.stderr


def test_plain_text_is_refused(cloud: Cloud) -> None:
    plain = cloud.url.replace("https", "http")
    done = cloud.laptop.neo("login", plain, EMAIL, "--password-stdin", text=f"{cloud.password}\n")
    assert done.returncode != 0 and "plain text" in done.stderr
    asked = "import httpx, sys; print(httpx.get(sys.argv[1], timeout=30).status_code)"
    assert cloud.laptop.python(asked, f"{plain}/healthz").returncode != 0
    call = """
import grpc, sys
channel = grpc.insecure_channel(sys.argv[1], options=[("grpc.enable_http_proxy", 0)])
grpc.channel_ready_future(channel).result(timeout=5)
"""
    assert cloud.laptop.python(call, f"{CLOUD_ADDRESS}:{cloud.port('gRPC')}").returncode != 0


def test_ports_of_plain_text_are_not_open_to_the_laptop(cloud: Cloud) -> None:
    connect = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)"
    plain = [each for each in cloud.status["open_ports"] if not each["tls"]]  # type: ignore[attr-defined]
    assert plain and all(each["address"] == "127.0.0.1" for each in plain)
    for each in plain:
        assert cloud.laptop.python(connect, CLOUD_ADDRESS, str(each["port"])).returncode != 0
    for protocol in ("gRPC", "JSON"):
        reached = cloud.laptop.python(connect, CLOUD_ADDRESS, str(cloud.port(protocol)))
        assert reached.returncode == 0, reached.stderr


JSON_CALLS = """
import httpx, json, ssl, sys
url, ca, names = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
verify = ssl.create_default_context(cafile=ca)
with httpx.Client(verify=verify, trust_env=False, timeout=60) as client:
    print(json.dumps([client.get(url + "/healthz", headers={"Host": name}).status_code for name in names]))
"""


def test_the_json_api_answers_for_its_own_names_only(cloud: Cloud) -> None:
    port = cloud.port("JSON")
    own = [CLOUD_ADDRESS, f"{CLOUD_ADDRESS}:{port}", *_host_name(), "compute.api.localhost"]
    foreign = ["evil.example", f"evil.example:{port}", "10.213.0.9", "api.localhost.evil.example", ""]
    done = cloud.laptop.python(
        JSON_CALLS, cloud.url, str(cloud.home / "tls" / "ca.pem"), json.dumps([*own, *foreign])
    )
    assert json.loads(done.stdout) == [200] * len(own) + [421] * len(foreign), done.stderr


def test_what_is_chosen_is_kept_and_changed_by_a_restart_only(cloud: Cloud) -> None:
    again = cloud.machine.neo("up", "--emulator", "--home", str(cloud.home))
    assert again.returncode == 0 and cloud.url in again.stdout, again.stderr
    same = cloud.machine.neo("up", "--emulator", "--home", str(cloud.home), "--listen", CLOUD_ADDRESS)
    assert same.returncode == 0, same.stderr
    for options in (["--listen", "all"], ["--listen", "none"], ["--https-port", "1"]):
        other = cloud.machine.neo("up", "--emulator", "--home", str(cloud.home), *options)
        assert other.returncode != 0
        assert options[0] in other.stderr and "neo down" in other.stderr


def test_plain_text_for_other_machines_cannot_be_chosen(cloud: Cloud) -> None:
    refused = cloud.machine.neo("up", "--emulator", "--home", str(cloud.home), "--no-tls")
    assert refused.returncode != 0 and "loopback only" in refused.stderr


def test_status_says_which_ports_are_open_to_whom(cloud: Cloud) -> None:
    shown = cloud.machine.neo("status", "--home", str(cloud.home)).stdout
    assert "other machines, over TLS" in shown
    assert f"TCP {cloud.port('gRPC')}" in shown and f"TCP {cloud.port('JSON')}" in shown
    assert f"neo login {cloud.url}" in shown and cloud.fingerprint in shown


def test_a_certificate_of_another_authority_is_served_and_trusted(cloud: Cloud, tmp_path: Path) -> None:
    """The certificate is of a company's own authority, which its laptops trust."""
    names = [CLOUD_ADDRESS, "cloud.bank.example"]
    company = ensure_certificate(tmp_path / "company", names, datetime.now(UTC))
    home = tmp_path / "second"
    files = ["--tls-certificate", str(company.chain_file), "--tls-key", str(company.key_file)]
    started = cloud.machine.neo("up", "--emulator", "--home", str(home), "--listen", CLOUD_ADDRESS, *files)
    assert started.returncode == 0, started.stderr
    try:
        status = json.loads(cloud.machine.neo("status", "--home", str(home), "-o", "json").stdout)
        assert status["fingerprint"] == ""
        port = next(
            each["port"] for each in status["open_ports"] if each["tls"] and each["protocol"] == "JSON"
        )
        sign_in = (
            "login",
            f"https://{CLOUD_ADDRESS}:{port}",
            "--credentials",
            str(home / "credentials.json"),
        )
        trusting = {"SSL_CERT_FILE": str(tmp_path / "company" / "ca.pem")}
        done = cloud.laptop.neo(*sign_in, "--name", "company", **trusting)
        assert done.returncode == 0, done.stderr
        listed = cloud.laptop.neo("--profile", "company", "iam", "project", "list", **trusting)
        assert listed.returncode == 0 and "default" in listed.stdout, listed.stderr
        outsider = cloud.laptop.neo(*sign_in, "--name", "outsider")
        assert outsider.returncode != 0 and "not trusted" in outsider.stderr
    finally:
        cloud.machine.neo("destroy", "--home", str(home), "--yes")


SIGN_IN_BY_NAME = """
import socket, sys
from neocloud.client.trust import find_cloud
address, url = sys.argv[1:]
resolve = socket.getaddrinfo
socket.getaddrinfo = lambda host, *more, **named: resolve(address, *more, **named)
print(find_cloud(url, "", "", lambda fingerprint: sys.exit("asked for a fingerprint")).endpoint)
"""


def test_a_certificate_is_ordered_by_acme_and_the_laptop_trusts_it(cloud: Cloud, tmp_path: Path) -> None:
    """The authority runs on the laptop, and checks the name at port 80 of the cloud's machine."""
    name, home, folder = "cloud.example.test", tmp_path / "third", tmp_path / "authority"
    program = [sys.executable, "-m", "tests.acme_authority", LAPTOP_ADDRESS, "14000", str(folder)]
    inside = ["ip", "netns", "exec", cloud.laptop.namespace]
    repository = ROOT
    trusting = {"SSL_CERT_FILE": str(folder / "ca.pem")}
    options = ["--listen", CLOUD_ADDRESS, "--acme-domain", name, "--acme-agree-tos"]
    options += ["--acme-directory", f"https://{LAPTOP_ADDRESS}:14000/directory"]
    try:
        with subprocess.Popen(
            [*inside, *program, f"{name}={CLOUD_ADDRESS}:80"], stdout=subprocess.PIPE, cwd=repository
        ) as authority:
            try:
                assert authority.stdout is not None and authority.stdout.readline() == b"ready\n"
                started = cloud.machine.neo("up", "--emulator", "--home", str(home), *options, **trusting)
            finally:
                authority.kill()
        # `neo up` shows the order only where it still runs when `neo up` first looks.
        assert started.returncode == 0 and "by ACME from" in started.stdout, started.stderr
        status = json.loads(cloud.machine.neo("status", "--home", str(home), "-o", "json").stdout)
        assert status["fingerprint"] == "" and status["certificate"]["problem"] == ""
        (port,) = (
            each["port"] for each in status["open_ports"] if each["tls"] and each["protocol"] == "JSON"
        )
        assert f"neo login https://{name}:{port} EMAIL" in started.stdout
        command = [sys.executable, "-c", SIGN_IN_BY_NAME, CLOUD_ADDRESS, f"https://{name}:{port}"]
        found = cloud.laptop.run(command, SSL_CERT_FILE=str(folder / "issuer.pem"))
        assert found.stdout.startswith(f"{name}:"), found.stderr
        # The authority is gone, and nothing is ordered from it.
        cloud.machine.neo("down", "--home", str(home))
        again = cloud.machine.neo("up", "--emulator", "--home", str(home), **trusting)
        assert again.returncode == 0 and "by ACME from" in again.stdout, again.stderr
        assert "Certificate for" not in again.stderr
    finally:
        cloud.machine.neo("destroy", "--home", str(home), "--yes")
