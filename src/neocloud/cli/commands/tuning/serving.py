"""Serve base and new model, and send both the same question."""

import time
from typing import Any

import typer

from neocloud.cli.commands.inference.deploy import deploy
from neocloud.cli.output import say
from neocloud.cli.progress import stage
from neocloud.cli.resources.lookup import DEPLOYMENTS, ProjectClient
from neocloud.cli.terminal import echo
from neocloud.client.errors import ClientError
from neocloud.client.gateway import Gateway

ADAPTERS = 4
SERVED_TIMEOUT_SECONDS = 300.0
POLL_SECONDS = 1.0
ANSWER_TOKENS = 80


def serve(context: typer.Context, cloud: ProjectClient, base: Any, job: Any) -> None:
    """Deploy what is missing and wait until both names can be called."""
    _ensure_deployment(context, cloud, base, job)
    names = {base.metadata.name, job.status.fine_tuned_model}
    with stage(f"Wait until {' and '.join(sorted(names))} can be called"):
        deadline = time.monotonic() + SERVED_TIMEOUT_SECONDS
        while not names <= _served(cloud):
            if time.monotonic() > deadline:
                raise ClientError(
                    "DEADLINE_EXCEEDED",
                    f"{', '.join(sorted(names - _served(cloud)))} is not served yet",
                    "See the reason: neo deployment list; neo deployment logs NAME",
                )
            time.sleep(POLL_SECONDS)


def answers(gateway: Gateway, models: list[str], question: str) -> None:
    """Print each model's answer to the question."""
    echo(f"Question: {question}")
    for model in models:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
        }
        answer = gateway.post("chat/completions", body)["choices"][0]["message"]["content"]
        echo(f"{model}: {answer.strip()}")


def _ensure_deployment(context: typer.Context, cloud: ProjectClient, base: Any, job: Any) -> None:
    here = [each for each in cloud.list_all(DEPLOYMENTS) if each.spec.model_id == base.metadata.id]
    if job.spec.merge:
        deploy(context, job.status.fine_tuned_model, platform=job.spec.platform)
    if not here:
        adapters = 0 if job.spec.merge else ADAPTERS
        deploy(
            context,
            base.metadata.name,
            max_adapters=adapters,
            platform=job.spec.platform,
        )
    elif not job.spec.merge and not any(each.spec.max_adapters for each in here):
        name = here[0].metadata.name
        raise ClientError(
            "FAILED_PRECONDITION",
            f"The deployment {name} of {base.metadata.name} does not accept adapters",
            f"Deploy it again: neo deployment delete {name}; neo deploy {base.metadata.name} --max-adapters"
            f" {ADAPTERS}. Or train with --merge",
        )
    else:
        say(f"{base.metadata.name} is already served by {here[0].metadata.name}.")


def _served(cloud: ProjectClient) -> set[str]:
    return {
        name
        for deployment in cloud.list_all(DEPLOYMENTS)
        for name in deployment.status.served_names
        if any(replica.state == replica.READY for replica in deployment.status.replicas)
    }
