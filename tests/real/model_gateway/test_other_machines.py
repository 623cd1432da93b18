"""The gateway and its chat page over TLS, from a second network namespace: a colleague's laptop."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.real.model_gateway.gateway_over_tls import PUBLIC_NAME
from tests.two_machines import CLOUD_ADDRESS, CLOUD_ADDRESS_6, Machine, two_machines

PORT = 8901
"""Free: the network namespace is the test's own."""
URL = f"https://{CLOUD_ADDRESS}:{PORT}"
KEY = "key-a"
REQUEST = """
import httpx, json, ssl, sys
asked = json.loads(sys.argv[1])
verify = ssl.create_default_context(cafile=asked.pop("ca"))
with httpx.Client(verify=verify, trust_env=False, timeout=60) as client:
    answers = [client.request(**each) for each in asked["requests"]]
print(json.dumps([[each.status_code, each.text, list(each.headers.multi_items())] for each in answers]))
"""


@dataclass
class Answer:
    status: int
    text: str
    headers: list[list[str]]

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key == name), "")


@dataclass
class Site:
    laptop: Machine
    machine: Machine
    authority: Path
    near: str
    """URL of plain text on loopback, in the cloud's namespace."""

    def ask(self, *requests: dict[str, Any], ca: Path | None = None) -> list[Answer]:
        """Send requests from the laptop in one connection."""
        asked = {
            "ca": str(ca or self.authority),
            "requests": [{"method": "GET", **each} for each in requests],
        }
        done = self.laptop.python(REQUEST, json.dumps(asked))
        assert done.returncode == 0, done.stderr
        return [Answer(*each) for each in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("gateway")
    with two_machines(folder) as (machine, laptop):
        program = [
            sys.executable,
            "-m",
            "tests.real.model_gateway.gateway_over_tls",
            str(folder / "cloud"),
            str(PORT),
        ]
        command = ["ip", "netns", "exec", machine.namespace, *program, CLOUD_ADDRESS, CLOUD_ADDRESS_6]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None and process.stdout is not None
            try:
                near = process.stdout.readline().strip()
                assert near, "The gateway has not started."
                yield Site(laptop, machine, folder / "cloud" / "tls" / "ca.pem", near)
            finally:
                process.stdin.close()
                process.wait(60)


def test_the_openai_client_works_from_a_laptop(site: Site) -> None:
    program = """
import httpx, openai, ssl, sys
http = httpx.Client(verify=ssl.create_default_context(cafile=sys.argv[2]), trust_env=False)
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key=sys.argv[3], http_client=http, max_retries=0)
print([each.id for each in client.models.list()])
messages = [{"role": "user", "content": "two words"}]
for chunk in client.chat.completions.create(model="bank", messages=messages, stream=True):
    if chunk.choices and chunk.choices[0].delta.content:
        print("chunk", chunk.choices[0].delta.content)
"""
    for url in (URL, f"https://[{CLOUD_ADDRESS_6}]:{PORT}"):
        done = site.laptop.python(program, url, str(site.authority), KEY)
        assert done.returncode == 0, done.stderr
        assert "['bank']" in done.stdout and "chunk" in done.stdout


def test_a_key_is_needed_and_plain_text_is_refused(site: Site) -> None:
    (answer,) = site.ask({"url": f"{URL}/v1/models"})
    assert answer.status == 401
    plain = "import httpx, sys; httpx.get(sys.argv[1], trust_env=False, timeout=60)"
    refused = site.laptop.python(plain, f"http://{CLOUD_ADDRESS}:{PORT}/health")
    assert refused.returncode != 0 and "httpx." in refused.stderr
    port = site.near.rpartition(":")[2]
    unreachable = site.laptop.python(plain, f"http://{CLOUD_ADDRESS}:{port}/health")
    assert unreachable.returncode != 0 and "httpx.Connect" in unreachable.stderr


def test_no_other_authority_and_no_other_name_is_trusted(site: Site) -> None:
    program = "import httpx, sys; httpx.get(sys.argv[1], trust_env=False, timeout=60)"
    refused = site.laptop.python(program, f"{URL}/health")
    assert refused.returncode != 0 and "CERTIFICATE_VERIFY_FAILED" in refused.stderr


def test_it_answers_for_its_own_names_only(site: Site) -> None:
    own = (CLOUD_ADDRESS, f"{CLOUD_ADDRESS}:{PORT}", PUBLIC_NAME, f"{PUBLIC_NAME}:{PORT}")
    foreign = ("evil.example", f"evil.example:{PORT}", "10.213.0.9", f"{CLOUD_ADDRESS}.evil.example", "")
    paths = ("/v1/models", "/chat", "/health", "/metrics")
    for names, is_own in ((own, True), (foreign, False)):
        answers = site.ask(
            *({"url": URL + path, "headers": {"Host": name}} for name in names for path in paths)
        )
        assert {answer.status == 421 for answer in answers} == {not is_own}


@pytest.mark.parametrize("host", [CLOUD_ADDRESS, "localhost", "127.0.0.1"])
def test_metrics_stay_on_the_machine_whatever_the_request_says(site: Site, host: str) -> None:
    said = {
        "Host": host,
        "X-Forwarded-For": "127.0.0.1",
        "Forwarded": "for=127.0.0.1",
        "X-Real-Ip": "127.0.0.1",
    }
    (answer,) = site.ask({"url": f"{URL}/metrics", "headers": said})
    assert answer.status == 403


def test_the_chat_page_signs_in_with_a_secure_cookie(site: Site) -> None:
    origin = {"Origin": URL}
    page, refused, signed_in = site.ask(
        {"url": f"{URL}/chat"},
        {
            "url": f"{URL}/chat/session",
            "method": "POST",
            "json": {"key": KEY},
            "headers": {"Origin": "https://a.example"},
        },
        {"url": f"{URL}/chat/session", "method": "POST", "json": {"key": KEY}, "headers": origin},
    )
    assert page.status == 200 and "<html" in page.text
    assert refused.status == 403
    assert signed_in.status == 201
    cookie = signed_in.header("set-cookie").lower()
    assert all(word in cookie for word in ("secure", "httponly", "samesite=strict", "path=/chat"))
    assert KEY not in cookie
