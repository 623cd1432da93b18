"""Page tokens: opaque text that leads back to a place in one particular list.

A token carries a check sum over its content and the list it belongs to, so a damaged token, or one of another
list, is refused instead of giving a wrong page. The sum is no secret and guards nothing: a token only names a
place in a list that the caller must be allowed to read anyway.
"""

import base64
import binascii
import hashlib

from neocloud.core.contract.errors import bad_field

_SUM_LENGTH = 8


def page_token(after: str, scope: str) -> str:
    """The token for the rows after the sort key `after`; "" when there are none. `scope` names the list."""
    if not after:
        return ""
    content = after.encode()
    return base64.urlsafe_b64encode(_check_sum(content, scope) + content).decode().rstrip("=")


def page_after(token: str, scope: str) -> str:
    """The sort key in a token. Raises ApiError when it was damaged or is of another list."""
    if not token:
        return ""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        check_sum, content = raw[:_SUM_LENGTH], raw[_SUM_LENGTH:]
        if check_sum == _check_sum(content, scope):
            return content.decode()
    except (binascii.Error, ValueError):
        pass
    raise bad_field(
        "page_token", "is not a token of this list. Pass next_page_token of the page before, or nothing."
    )


def _check_sum(content: bytes, scope: str) -> bytes:
    return hashlib.blake2s(scope.encode() + b"\0" + content, digest_size=_SUM_LENGTH).digest()
