"""Serve a fine-tuned model next to its base, for `neo tune --serve`."""

import time
from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING

import typer

from neocloud.cli.commands.inference.deploy import deploy, service
from neocloud.cli.commands.inference.price import (
    callable_name,
    called_name,
    has_budget,
    is_cut_off,
    is_priced,
)
from neocloud.cli.evaluation.gate import EXIT_GATE, show_rules
from neocloud.cli.output import say
from neocloud.cli.progress import stage
from neocloud.cli.resources.lookup import DEPLOYMENTS, ProjectClient, state_of
from neocloud.client.errors import ClientError
from neocloud.core.evaluation_gate import RuleVerdict

if TYPE_CHECKING:
    from neocloud.messages.neocloud.inference.v1 import Deployment, Model
    from neocloud.messages.neocloud.tuning.v1 import FineTuningJob, GateRuleVerdict

ADAPTERS = 4
SERVED_TIMEOUT_SECONDS = 300.0
POLL_SECONDS = 1.0


def is_whole(job: "FineTuningJob") -> bool:
    """Return whether the new model is a whole one, which has a deployment of its own."""
    used = job.spec.hyperparameters
    return job.spec.merge or (used.HasField("lora") and not used.lora)


def require_gate(job: "FineTuningJob", *, on_stderr: bool) -> None:
    """Print the verdict of the job's gate, and end with its exit code where the model failed."""
    if not job.status.HasField("gate"):
        return
    show_rules([verdict_of(rule) for rule in job.status.gate.rules], on_stderr=on_stderr)
    if not job.status.gate.passed:
        say(f"{job.status.fine_tuned_model} is kept and not served. Who may override gates can serve it:")
        say(f"  neo model override-gate {quote(job.status.fine_tuned_model)} --reason TEXT")
        raise typer.Exit(EXIT_GATE)


def verdict_of(rule: "GateRuleVerdict") -> RuleVerdict:
    return RuleVerdict(rule.asked, rule.measured, rule.passed, rule.why)


def check_serving(cloud: ProjectClient, base: "Model", price: str, *, merge: bool) -> None:
    """Raise ClientError if base and new model could not be served or called after the training."""
    name = base.metadata.name
    deployment = _deployment_of(cloud.list_all(DEPLOYMENTS), base, merge=merge)
    needs_price = "and this project has a budget, so it could not be called"
    if deployment is not None:
        change = f"neo deployment price {quote(deployment.metadata.name)}"
        if price and not merge:
            raise ClientError(
                "FAILED_PRECONDITION",
                f"{name} is already served by the deployment {deployment.metadata.name}, whose price the new"
                " model has too",
                f"Leave out --price, or change that price: {change} {price}",
            )
        if has_budget(cloud) and not is_priced(cloud, deployment, name):
            raise ClientError(
                "FAILED_PRECONDITION",
                f"The deployment {deployment.metadata.name} of {name} has no price, {needs_price}",
                f"Set a price: {change} INPUT/OUTPUT (US dollars per million tokens; 0 if it is free)",
            )
    if price:
        return
    if has_budget(cloud) if merge else deployment is None and is_cut_off(cloud, name):
        raise ClientError(
            "FAILED_PRECONDITION",
            f"{'The new model' if merge else name} has no price, {needs_price}",
            "Add --price INPUT/OUTPUT (US dollars per million tokens; 0 if it is free)",
        )


def serve(cloud: ProjectClient, base: "Model", job: "FineTuningJob", price: str = "") -> tuple[str, str]:
    """Deploy what is missing, and return the names of base and new model once both can be called.

    Raises ClientError if that takes too long, or with the reason of a deployment in ERROR.
    """
    _ensure_deployment(cloud, base, job, price)
    models = base.metadata.name, job.status.fine_tuned_model
    with stage(f"Wait until {' and '.join(models)} can be called"):
        deadline = time.monotonic() + SERVED_TIMEOUT_SECONDS
        while True:
            serving = list(zip(models, _serving(cloud, base, job), strict=True))
            base_name, new_name = (callable_name(model, served_by) for model, served_by in serving)
            if base_name and new_name:
                return base_name, new_name
            missing = [each for each, name in zip(serving, (base_name, new_name), strict=True) if not name]
            for model, served_by in missing:
                _refuse_failed(model, served_by)
            if time.monotonic() > deadline:
                raise ClientError(
                    "DEADLINE_EXCEEDED",
                    f"{', '.join(model for model, _ in missing)} is not served yet",
                    "See the reason: neo deployment list; neo deployment logs NAME",
                )
            time.sleep(POLL_SECONDS)


def _ensure_deployment(cloud: ProjectClient, base: "Model", job: "FineTuningJob", price: str) -> None:
    deployment = _deployment_of(cloud.list_all(DEPLOYMENTS), base, merge=is_whole(job))
    platform = job.spec.platform
    if is_whole(job):
        deploy(cloud, job.status.fine_tuned_model, platform=platform, offered=service(price=price))
    if deployment is None:
        offered = service(max_adapters=0 if is_whole(job) else ADAPTERS, price=price)
        deploy(cloud, base.metadata.name, platform=platform, offered=offered)
    else:
        say(f"{base.metadata.name} is already served by {deployment.metadata.name}.")


def _deployment_of(deployments: "Sequence[Deployment]", base: "Model", *, merge: bool) -> "Deployment | None":
    """Return the deployment of the base to use; None if there is none.

    Raises ClientError if there are some, but none accepts an adapter, which a job without --merge creates.
    """
    here = [each for each in deployments if each.spec.model_id == base.metadata.id]
    usable = [each for each in here if merge or each.spec.max_adapters]
    if here and not usable:
        name = here[0].metadata.name
        raise ClientError(
            "FAILED_PRECONDITION",
            f"The deployment {name} of {base.metadata.name} does not accept adapters",
            f"Deploy it again: neo deployment delete {quote(name)}; neo deploy {quote(base.metadata.name)}"
            f" --max-adapters {ADAPTERS}. Or train with --merge",
        )
    return usable[0] if usable else None


def _serving(
    cloud: ProjectClient, base: "Model", job: "FineTuningJob"
) -> tuple["Sequence[Deployment]", "Sequence[Deployment]"]:
    """Return the deployments that serve the base, and those that serve the new model."""
    deployments = cloud.list_all(DEPLOYMENTS)
    of_base = _deployment_of(deployments, base, merge=is_whole(job))
    serve_base = [] if of_base is None else [of_base]
    if not is_whole(job):
        return serve_base, serve_base
    new = job.status.fine_tuned_model
    return serve_base, [each for each in deployments if called_name(new, each) in each.status.served_names]


def _refuse_failed(model: str, deployments: "Sequence[Deployment]") -> None:
    """Raise ClientError with the reason if every deployment of the model is in ERROR."""
    if not deployments or any(state_of(each) != "ERROR" for each in deployments):
        return
    name, why = deployments[0].metadata.name, deployments[0].status.message
    known_as = quote(name)
    raise ClientError(
        "FAILED_PRECONDITION",
        f"{model} is not served: its deployment {name} is in state ERROR{f': {why}' if why else ''}",
        f"The cloud keeps trying. See its log: neo deployment logs {known_as}; and its state:"
        f" neo deployment get {known_as}",
    )
