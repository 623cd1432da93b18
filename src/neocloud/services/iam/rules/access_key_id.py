"""The two names of an access key: the cloud's own id, and what S3 clients send as their access key id.

Each follows from the other, so a signed request finds its key without an index.
"""

import re

from neocloud.core import contract
from neocloud.services.iam.resources import ACCESS_KEY_ID_PREFIX

_AWS_PREFIX = "NCAK"
_AWS_ID = re.compile(rf"{_AWS_PREFIX}([A-Z0-9]{{13,75}})")


def aws_access_key_id(key_id: str) -> str:
    """ "accesskey-e00k3v..." is NCAKE00K3V..."""
    return _AWS_PREFIX + key_id.removeprefix(f"{ACCESS_KEY_ID_PREFIX}-").upper()


def key_id_of(aws_id: str) -> str:
    """The id of the key that S3 clients call so. Raises ApiError when no key can have this name."""
    if not aws_id:
        raise contract.bad_field("aws_access_key_id", "is required")
    found = _AWS_ID.fullmatch(aws_id)
    if found is None:
        raise contract.not_found("access key", aws_id)
    return f"{ACCESS_KEY_ID_PREFIX}-{found[1].lower()}"
