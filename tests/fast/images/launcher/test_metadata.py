"""Metadata and names for the guest: the token of its service account, and nothing for anybody else."""

import http.client
import json
from collections.abc import Iterator
from email.message import Message
from http import HTTPStatus

import pytest
from launcher.desired import parse_machine
from launcher.metadata import Metadata, serve_metadata
from launcher.names import dnsmasq_command, nameservers_of

TOKEN = {"access_token": "secret", "expires_at": "2027-01-01T00:00:00Z", "token_type": "Bearer"}


@pytest.fixture
def metadata(desired, tmp_path) -> Metadata:
    desired["interface"]["address"] = "127.0.0.1"  # the guest of these tests
    (tmp_path / "token.json").write_text(json.dumps(TOKEN))
    return Metadata(parse_machine(desired), tmp_path / "token.json")


@pytest.fixture
def port(metadata) -> Iterator[int]:
    server = serve_metadata(metadata, "127.0.0.1", 0)
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def get(port: int, path: str, **headers: str) -> tuple[int, str, str]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    link.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = link.getresponse()
    return answer.status, answer.headers["Content-Type"], answer.read().decode()


def test_the_token(port):
    status, kind, content = get(port, "/v1/iam/sa/token", Metadata="true")
    assert (status, kind) == (200, "application/json")
    assert json.loads(content) == {"access_token": "secret", "expires_at": "2027-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    "headers", [{}, {"Metadata": "false"}, {"Metadata": "true", "X_Forwarded_For": "1.2.3.4"}]
)
def test_a_request_without_the_header_gets_nothing(port, headers):
    status, _, content = get(port, "/v1/iam/sa/token", **headers)
    assert status == 403
    assert "secret" not in content


def test_who_the_machine_is(port):
    assert get(port, "/v1/instance/id", Metadata="true")[2] == "computeinstance-e00one\n"
    assert get(port, "/v1/instance/hostname", Metadata="true")[2] == "worker-1\n"
    assert get(port, "/v1/", Metadata="true")[0] == 404


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("id", "computeinstance-e00one"),
        ("parent_id", "project-e00lab"),
        ("name", "one"),
        ("hostname", "worker-1"),
        ("region", "eu-north1"),
    ],
)
def test_where_the_machine_belongs(port, name, fact):
    assert get(port, f"/v1/instance-data/{name}", Metadata="true") == (
        *(200, "text/plain; charset=utf-8"),
        f"{fact}\n",
    )
    status, _, content = get(port, f"/v1/instance-data/{name}")
    assert status == 403
    assert fact not in content


def test_what_a_machine_was_not_told_is_not_there(desired):
    """An older control plane names no project; the answer is no empty text that looks like one."""
    del desired["parent_id"]
    headers = Message()
    headers["Metadata"] = "true"
    mine = desired["interface"]["address"]
    asked = Metadata(parse_machine(desired)).answer(mine, "/v1/instance-data/parent_id", headers)
    assert asked[0] == HTTPStatus.NOT_FOUND


def test_a_neighbour_gets_nothing(metadata):
    headers = Message()
    headers["Metadata"] = "true"
    status, _, content = metadata.answer("10.128.0.6", "/v1/iam/sa/token", headers)
    assert status == HTTPStatus.FORBIDDEN
    assert "secret" not in content


def test_the_token_is_read_each_time(port, tmp_path):
    file = tmp_path / "token.json"
    file.write_text(json.dumps(TOKEN | {"access_token": "renewed"}))
    assert "renewed" in get(port, "/v1/iam/sa/token", Metadata="true")[2]
    file.write_text("{")
    assert get(port, "/v1/iam/sa/token", Metadata="true")[0] == 503
    file.unlink()
    assert get(port, "/v1/iam/sa/token", Metadata="true")[0] == 404


def test_names_golden(tmp_path):
    assert dnsmasq_command("net.internal", tmp_path / "log") == [
        *("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--user=nobody", "--group=nogroup"),
        *("--listen-address=169.254.169.254", "--bind-interfaces", "--no-resolv", "--pid-file="),
        *("--no-hosts", "--addn-hosts=/etc/hosts", "--local-ttl=5", f"--log-facility={tmp_path}/log"),
        "--host-record=metadata.nebius.internal,169.254.169.254",
        *("--domain=net.internal", "--expand-hosts", "--local=/net.internal/"),
    ]


def test_the_next_servers_are_those_a_guest_can_reach():
    resolver = (
        "search x\nnameserver 127.0.0.11\nnameserver fe80::1\nnameserver 169.254.1.1\nnameserver 10.0.0.53\n"
    )
    assert [str(server) for server in nameservers_of(resolver + "nameserver\n")] == ["10.0.0.53"]
