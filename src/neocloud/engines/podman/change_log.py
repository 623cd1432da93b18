# pyright: strict
"""One log line for each change that the engine makes on this machine: what it was and how long it took."""

import contextlib
import logging
import time
from collections.abc import Generator

from neocloud.engines.base import Reference


@contextlib.contextmanager
def logged(logger: logging.Logger, change: str, pod: Reference | None = None) -> Generator[None, None, None]:
    """Log the change at DEBUG once it is made; a change that fails raises and is not logged here."""
    began = time.monotonic()
    yield
    logger.debug("%s in %.3f s", change, time.monotonic() - began, extra=pod_field(pod))


def pod_field(pod: Reference | None) -> dict[str, str]:
    """Return the bound field of log lines about a pod."""
    return {"pod": f"{pod.namespace}/{pod.name}"} if pod else {}
