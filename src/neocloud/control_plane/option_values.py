# pyright: strict
"""How the values of options are read: each function takes the text of an option or of `config.json`.

Each raises ValueError with a message for the operator.
"""

from collections.abc import Callable
from ipaddress import IPv4Network, ip_address
from pathlib import Path

EVERY_ADDRESS = "all"


def model_folder(text: str) -> Path:
    """With all links followed, as folders of models are compared."""
    folder = Path(text).expanduser().resolve()
    if folder == Path("/"):
        raise ValueError("the whole machine cannot be opened for models")
    return folder


def host_name(text: str) -> str:
    if not text or not all(part.replace("-", "").replace(":", "").isalnum() for part in text.split(".")):
        raise ValueError("a host name or an address, without scheme and port")
    return text.lower()


def media_domain(text: str) -> str:
    """As argparse reads it; the gateway and vLLM compare names."""
    name = host_name(text)
    if ":" in name or name.rpartition(".")[2].isdigit():
        raise ValueError("a host name, not an address")
    return name


def listen_address(text: str) -> str:
    """Return an address of this host, or "all"."""
    if text == EVERY_ADDRESS:
        return text
    try:
        found = ip_address(text.strip("[]"))
    except ValueError:
        raise ValueError(f"{text!r} is neither an address nor 'all'") from None
    if found.is_multicast or "%" in text:
        raise ValueError(f"clients cannot connect to {text}")
    return EVERY_ADDRESS if found.is_unspecified else str(found)


def rate(text: str) -> float:
    found = float(text)
    if not 0 <= found < float("inf"):
        raise ValueError("must be 0 or more")
    return found


def port_range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    found = int(first), int(last or first)
    if not 1024 <= found[0] <= found[1] <= 65535:
        raise ValueError("a range of ports is FIRST-LAST, from 1024 to 65535")
    return found


def ipv4_range(text: str) -> str:
    return str(IPv4Network(text)) if text else ""


def certificate_file(text: str) -> Path | None:
    """Return the file of an option; None for "none"."""
    return None if text == "none" else Path(text).expanduser().absolute()


def absolute_path(text: str) -> Path:
    """Return the path as the option gives it, below the current folder where it is relative."""
    return Path(text).absolute()


def one_of(*known: str) -> Callable[[str], str]:
    """Return a parser that takes these words alone."""

    def parse(text: str) -> str:
        if text not in known:
            raise ValueError(f"must be one of {', '.join(known)}")
        return text

    return parse
