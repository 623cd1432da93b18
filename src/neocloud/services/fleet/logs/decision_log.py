"""The lines of the log that say what the fleet does to a node, and why.

There is one for each event that is a decision, and for each breaker that opens or closes.

Lines are written once the events are durable. Changes of nodes by themselves have none: they are in their
history.
"""

import logging
from collections.abc import Iterable, Mapping

from neocloud.core.logs import bind
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.events import Event

logger = logging.getLogger(__name__)


def _words(event: Event) -> str:
    """Return what the event says; "" for one that is not a decision."""
    match event:
        case e.DrainRequested():
            check = f" ({event.check})" if event.check else ""
            return f"drained by {event.owner}: {event.evidence}{check}"
        case e.DrainReleased():
            return f"released by {event.owner}"
        case e.StepStarted():
            return f"repair {event.attempt} starts: {event.action.value}"
        case e.StepEnded():
            return f"repair {event.attempt} {'succeeded' if event.succeeded else 'failed'}"
        case e.VerificationStarted():
            return f"verification {event.attempt} starts: {event.suite.value}"
        case e.VerificationEnded():
            return f"verification {event.attempt} {'passed' if event.passed else 'failed'}"
        case e.SpareReserved():
            return f"spare reserved in place of {event.replaces or 'a node that is missing'}"
        case e.Attached():
            return "spare attached"
        case e.Returned():
            return "returned to service"
        case e.Moved():
            return f"moved to {event.to.value} by {event.by}{f': {event.why}' if event.why else ''}"
        case _:
            return ""


def log_decisions(
    cluster_id: str, found: Iterable[Event], reasons: Mapping[Event, str] | None = None
) -> None:
    """Log the decisions among these events. `cluster_id`: "" for hosts. `reasons`: why, where it is known."""
    for event in found:
        if words := _words(event):
            why = (reasons or {}).get(event, "")
            with bind(resource=f"{cluster_id}/{event.node}" if cluster_id else event.node):
                logger.info("%s%s", words, f" ({why})" if why else "")


def log_breakers(pool_id: str, before: Iterable[tuple[str, str]], after: Iterable[tuple[str, str]]) -> None:
    """Log the breakers of a pool that have opened, or closed."""
    old, new = set(before), set(after)
    with bind(resource=pool_id):
        for key in sorted(new - old):
            logger.info("breaker %s opened: too many drains or failures at once", " ".join(key).strip())
        for key in sorted(old - new):
            logger.info("breaker %s closed", " ".join(key).strip())
