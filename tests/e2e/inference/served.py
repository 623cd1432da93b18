"""One model served by a real vLLM, as its users and its operator see it."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neocloud.core import contract
from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import Cloud

INFERENCE = "neocloud.inference.v1"
START_SECONDS = 400.0


@dataclass
class Served:
    """`name` is what clients call; the deployment is called so too."""

    cloud: Cloud
    name: str
    model: Path
    """The folder that it came from."""

    def call(self, method: str, request: dict[str, Any]) -> Any:
        return self.cloud.call(f"{INFERENCE}.{method}", request)

    @property
    def deployment(self) -> Any:
        request = {"parent_id": self.cloud.project_id, "name": self.name}
        return self.call("DeploymentService/GetByName", request)

    @property
    def state(self) -> str:
        return contract.enum(f"{INFERENCE}.DeploymentStatus.State").Name(self.deployment.status.state)

    @property
    def replica(self) -> Any:
        return self.deployment.status.replicas[0]

    def wait_until_ready(self, *, restarts: int = 0, seconds: float = START_SECONDS) -> None:
        def is_ready() -> bool:
            return self.state == "READY" and self.replica.restarts >= restarts

        wait_until(is_ready, f"deployment {self.name} is READY", seconds=seconds)

    def wait_for_adapters(self, *names: str) -> None:
        wait_until(lambda: list(self.replica.adapters) == sorted(names), f"adapters {names}", seconds=180)

    @property
    def gateway(self) -> str:
        """The base URL that OpenAI clients are given."""
        address = self.cloud.server["gateway"]
        return f"{address if '://' in address else f'http://{address}'}/v1"

    def token(self) -> str:
        """Return a token of the first service account: an API key for OpenAI clients."""
        return self.cloud.neo("session", "token").stdout.strip()

    def engine_key(self) -> str:
        """The replicas' own, which only the gateway gets: read as the machine's owner can."""
        return self.cloud.podman("exec", self.podman_name(), "cat", "/run/neocloud/engine/key").strip()

    def podman_name(self) -> str:
        return f"{self.deployment.metadata.id}.{self.replica.name}.engine"


def post(url: str, body: dict[str, Any], key: str = "") -> tuple[int, dict[str, Any]]:
    """Status and answer."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, data=json.dumps(body).encode(), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")


def chat(url: str, model: str, key: str = "") -> tuple[int, dict[str, Any]]:
    """A short question to a base URL."""
    messages = [{"role": "user", "content": "How do I block my card?"}]
    body = {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0}
    return post(f"{url}/chat/completions", body, key)


def conversation(number: int) -> str:
    asked = {"role": "user", "content": f"How do I block card {number} when I am abroad?"}
    told = {"role": "assistant", "content": f"Call us, or block card {number} in the app."}
    return json.dumps({"messages": [asked, told]})
