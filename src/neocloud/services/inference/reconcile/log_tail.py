"""The last lines that a pod wrote, for messages and for those who ask."""

from neocloud.engines.base import Engine, EngineError, Reference


async def last_lines(engine: Engine, pod: Reference, lines: int) -> str:
    """Without empty ones at the end; "" when there is no such pod or no log."""
    try:
        return "\n".join((await engine.log_page(pod, tail=lines)).lines).strip()
    except EngineError:
        return ""
