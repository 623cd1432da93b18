# pyright: strict
"""The one error a client raises: what happened, and what to do next."""

from dataclasses import dataclass


@dataclass
class ClientError(Exception):
    """A call failed. `code` is the gRPC status by name ("NOT_FOUND"), also for errors found on this side."""

    code: str
    message: str
    next_step: str = ""
    violations: tuple[tuple[str, str], ...] = ()
    """Invalid fields: (`spec.node_sets[0].count`, description)."""
    may_be_repeated: bool = False
    """Whether a server answered that the same call may succeed in a moment."""

    def __str__(self) -> str:
        lines = [_sentence(self.message)]
        lines += [
            f"  {field}: {message}" for field, message in self.violations if message not in self.message
        ]
        if self.next_step:
            lines.append(_sentence(self.next_step))
        return "\n".join(lines) if len(lines) > 2 else " ".join(lines)


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?", ":")) else f"{text}."
