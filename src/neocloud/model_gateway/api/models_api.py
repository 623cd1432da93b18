"""GET /v1/models, /health and /metrics."""

from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from neocloud.model_gateway.api.errors import STOPPED_STATES, forbidden, model_not_found
from neocloud.model_gateway.api.vectors import PATHS_OF_TASK
from neocloud.model_gateway.authentication import INVOKE, Authenticator, Caller, require_loopback
from neocloud.model_gateway.routing.routes import RouteTable, Target
from neocloud.model_gateway.routing.traffic import Metrics

_LOOPBACK = ("127.0.0.1", "::1")


def routes(
    authenticator: Authenticator,
    table: RouteTable,
    metrics: Metrics,
    is_connected: Callable[[], bool],
    shows_scrape_key: Callable[[Mapping[str, str]], bool],
) -> list[Route]:
    async def caller_of(request: Request) -> Caller:
        return await authenticator.authenticate(request.headers.get("authorization", ""))

    async def list_models(request: Request) -> Response:
        caller = await caller_of(request)
        targets = [target for target in table.of_tenant(caller.tenant_id) if _may_call(caller, target)]
        targets.sort(key=lambda target: target.name)
        return JSONResponse({"object": "list", "data": [_model(target) for target in targets]})

    async def get_model(request: Request) -> Response:
        caller = await caller_of(request)
        name = request.path_params["name"]
        target = table.find(caller.tenant_id, name)
        if target is None or not _may_call(caller, target):
            raise model_not_found(name)
        return JSONResponse(_model(target))

    async def health(request: Request) -> Response:
        """The state of this process, whether or not models are reachable."""
        return JSONResponse({"status": "ok", "control_plane": "connected" if is_connected() else "away"})

    async def read_metrics(request: Request) -> Response:
        """Metrics show the activity of tenants, so only operators and collectors with the key read them, and
        on this machine only."""
        if request.client is None or request.client.host not in _LOOPBACK:
            raise forbidden("Metrics are available on this machine only. Read them from 127.0.0.1.")
        require_loopback(request.scope)
        if not shows_scrape_key(request.headers) and not (await caller_of(request)).is_operator:
            raise forbidden("Only an operator of this cloud can read its metrics.")
        headers = {"cache-control": "no-store"}
        return Response(metrics.text(), media_type="text/plain; version=0.0.4", headers=headers)

    return [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", get_model, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/metrics", read_metrics, methods=["GET"]),
    ]


def _may_call(caller: Caller, target: Target) -> bool:
    return caller.may(INVOKE, target.project_id)


def _status(target: Target) -> str:
    deployment = target.deployment
    replicas = deployment.replicas
    if any(not target.is_adapter or target.served_name in replica.adapters for replica in replicas):
        return "ready"
    if deployment.state in STOPPED_STATES:
        return "stopped"
    return "starting" if deployment.state == "CREATING" else "cold"


def _pricing(target: Target) -> dict[str, str] | None:
    """Dollars per million tokens as strings; None where there is no price."""
    if target.deployment.is_billed_hourly:
        return {"input": "0", "cached_input": "0", "output": "0", "charge": "by_hour"}
    price = target.deployment.price
    return {**price, "charge": "by_token"} if price else None


def _model(target: Target) -> dict[str, object]:
    """OpenAI's fields first, then those of vLLM and Token Factory."""
    model: dict[str, object] = {
        "id": target.name,
        "object": "model",
        "created": target.created_at,
        "owned_by": target.project_id,
        "max_model_len": target.deployment.context_length or None,
        "task": target.deployment.task.lower(),
        "endpoints": list(PATHS_OF_TASK.get(target.deployment.task, ())),
        "status": _status(target),
        "pricing": _pricing(target),
    }
    if target.parent_name:
        model["parent"] = target.parent_name
    if target.license:
        model["license"] = target.license
    return model
