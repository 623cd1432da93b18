"""Calls of the engine inside a reconcile step: one place decides what an error of the engine means."""

from collections.abc import Awaitable, Mapping
from typing import TypeVar

from neocloud.core.reconcile.reconciler import RETRY_SECONDS, Failed, RetryLater
from neocloud.engines.base import EngineError, EngineUnavailable

Result = TypeVar("Result")


async def engine_call(
    call: Awaitable[Result],
    *,
    failures: Mapping[type[EngineError], str] | None = None,
    waiting: str = "",
    retry_seconds: float = RETRY_SECONDS,
) -> Result:
    """Return what the call returns; raise RetryLater when the engine cannot do it now.

    `failures` maps the errors that no retry helps against to the reason to fail with. An engine that does not
    answer is always tried again. `waiting` is shown before the engine's own message.
    """
    try:
        return await call
    except EngineError as error:
        if not isinstance(error, EngineUnavailable):
            for kind, reason in (failures or {}).items():
                if isinstance(error, kind):
                    raise Failed(reason, str(error)) from error
        text = f"{waiting}: {error}" if waiting else str(error)
        raise RetryLater(text, delay_seconds=retry_seconds) from error
