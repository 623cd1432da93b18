"""Options and their values: each function reads the text of an option or of `config.json`.

Each raises ValueError with a message for the operator.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Network, ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

EVERY_ADDRESS = "all"
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_PUBLIC_NAME = re.compile(rf"({_LABEL}\.)+(?!\d+$){_LABEL}")
_EMAIL = re.compile(r"[!-~]+@[!-~]+", re.ASCII)
_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")


@dataclass(frozen=True)
class Option:
    """The option of one field of `Settings`."""

    help: str
    flag: str = ""
    """Without dashes; "" means the name of the field."""
    parse: Callable[[str], Any] = str
    """Read the text of an option or of `config.json`. Raises ValueError."""
    kind: type = str
    """The type of the value that the command line shows."""
    metavar: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    by_neo: bool = True
    """Whether operators choose it, by `neo up` or `neo config set`."""
    clears: bool = False
    """Whether "none" clears a list."""
    example: str = ""
    """A value to write instead of a refused one."""


def option(default: Any, help: str, **more: Any) -> Any:
    """Return a field of Settings with its Option."""
    secret = more.pop("is_secret", False)
    return field(default=default, repr=not secret, metadata={"option": Option(help, **more)})


def port(default: int | None, help: str, **more: Any) -> Any:
    return option(default, help, parse=int, kind=int, minimum=0, maximum=65535, **more)


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
    """Return the host name as argparse reads it; the gateway and vLLM compare names."""
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


def interface_name(text: str) -> str:
    """Return the name of a network interface, which is safe in rules and paths; "" for "none"."""
    if text in ("", "none"):
        return ""
    if not _INTERFACE.fullmatch(text):
        raise ValueError(f"{text!r} is not the name of a network interface")
    return text


def certificate_file(text: str) -> Path | None:
    """Return the file of an option; None for "none"."""
    return None if text == "none" else Path(text).expanduser().absolute()


def public_name(text: str) -> str:
    """Return a host name that an authority can check by HTTP: no address, and no wildcard."""
    name = text.lower().removesuffix(".")
    if len(name) > 253 or not _PUBLIC_NAME.fullmatch(name):
        raise ValueError(f"{text!r} is not a host name with a domain, in ASCII and without '*'")
    return name


def email_address(text: str) -> str:
    """Return an address; "" for "none"."""
    if text in ("", "none"):
        return ""
    if not _EMAIL.fullmatch(text) or any(each in text for each in ",?&"):
        raise ValueError(f"{text!r} is not an e-mail address")
    return text


def https_url(text: str) -> str:
    """Return the URL of a page over https."""
    try:
        parts = urlsplit(text)
        is_usable = parts.scheme == "https" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable, parts = False, urlsplit("")
    if not is_usable or "@" in parts.netloc or parts.fragment or not text.isascii() or not text.isprintable():
        raise ValueError(f"{text!r} is not a URL that begins with https://")
    return text


def absolute_path(text: str) -> Path:
    """Return the path as the option gives it, below the current folder where it is relative."""
    return Path(text).absolute()


def none_or(parse: Callable[[str], str]) -> Callable[[str], str]:
    """Return a parser that takes "none" for nothing."""
    return lambda text: "" if text in ("", "none") else parse(text)


def one_of(*known: str) -> Callable[[str], str]:
    """Return a parser that takes these words alone."""

    def parse(text: str) -> str:
        if text not in known:
            raise ValueError(f"must be one of {', '.join(known)}")
        return text

    return parse
