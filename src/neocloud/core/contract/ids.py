# pyright: strict
"""Resource ids by the contract's grammar: `<type>-<routing><weak>`, such as "computedisk-e00k3v...".

The type tells a reader what the id stands for; the routing code stands for the installation. Ids are random
and say nothing else.
"""

import re
import secrets

ROUTING_CODE = "e00"
MAX_LENGTH = 1024
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # 32 of them; no i, l, o, u: ids are retyped
_WEAK_LENGTH = 20
_PATTERN = re.compile(
    r"[a-z][a-z0-9]{1,49}-[a-z][a-z0-9]{2}(?=.{2,72}(--|$))-?[a-z0-9]+(-[a-z0-9]+)*(--[a-z0-9-]+)?"
)
_TYPE = re.compile(r"[a-z][a-z0-9]{1,49}")


def new_id(prefix: str) -> str:
    """Return a new random id of this type."""
    if not _TYPE.fullmatch(prefix):
        raise ValueError(f"{prefix!r} cannot be the type of an id: a letter, then 1 to 49 of a-z0-9.")
    weak = "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in secrets.token_bytes(_WEAK_LENGTH))
    return f"{prefix}-{ROUTING_CODE}{weak}"


def is_id(text: str) -> bool:
    return len(text) <= MAX_LENGTH and _PATTERN.fullmatch(text) is not None


def id_prefix(identifier: str) -> str:
    """Return the type part of an id; "" when the text has none."""
    prefix, dash, _ = identifier.partition("-")
    return prefix if dash else ""
