"""SSH public keys that users give: what of them may stand in an authorized_keys file."""

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from neocloud.core.store.group_commit import refuse_while_writing


def is_public_key(text: str) -> bool:
    """Return whether the text is one key, with a comment or without. Options before the key, such as
    `command=` and `from=`, are refused."""
    refuse_while_writing("Reading an SSH key")
    line = text.strip()
    if not line.isprintable():  # neither lines of its own nor what a terminal obeys
        return False
    try:
        load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm):
        return False
    return True


def without_comment(key: str) -> str:
    """Return type and body of a key, which two lines for the same key have in common."""
    return " ".join(key.split()[:2])
