"""The signed policy of a POST form: what its fields and the size of its file may be. Pure.

Written from AWS's published description, "Creating a POST policy".
"""

import base64
import binascii
import json
from collections.abc import Mapping
from datetime import datetime

from neocloud.core.json_values import is_list, is_object
from neocloud.object_gateway.s3.errors import S3Error, denied
from neocloud.object_gateway.s3.headers import iso_time

MAX_CONDITIONS = 100
_FREE = ("x-amz-signature", "file", "policy")
_MAX_NUMBER = 5 * 1024**4


def check_policy(encoded: str, fields: Mapping[str, str], bucket: str, now: datetime) -> tuple[int, int]:
    """Return the least and most bytes of the file. Raises S3Error unless the policy allows these fields, by
    lower-case name, and each of them is named in it."""
    policy = _load(encoded)
    expiration, conditions = policy.get("expiration"), policy.get("conditions")
    if not isinstance(expiration, str) or not is_list(conditions):
        raise _invalid("needs expiration and conditions")
    if iso_time(expiration, "InvalidPolicyDocument") <= now:
        raise denied("Invalid according to Policy: Policy expired.")
    if len(conditions) > MAX_CONDITIONS:
        raise _invalid(f"may have {MAX_CONDITIONS} conditions")
    given = {**fields, "bucket": bucket}
    named: set[str] = set()
    least, most = 0, _MAX_NUMBER
    for condition in conditions:
        operator, name, value = _condition(condition)
        if operator == "content-length-range":
            low, high = _number(name), _number(value)
            least, most = max(least, low), min(most, high)
            continue
        if not isinstance(name, str) or not isinstance(value, str):
            raise _invalid("has a condition that is not of text")
        field = name.removeprefix("$").lower()
        named.add(field)
        actual = given.get(field, "")
        is_met = actual.startswith(value) if operator == "starts-with" else actual == value
        if not is_met:
            raise denied(f"Invalid according to Policy: Policy Condition failed: {field[:100]}.")
    for name in sorted(given.keys() - named - set(_FREE)):
        if not name.startswith("x-ignore-"):
            raise denied(f"Invalid according to Policy: Extra input fields: {name[:100]}.")
    return least, most


def _load(encoded: str) -> Mapping[str, object]:
    try:
        found: object = json.loads(base64.b64decode(encoded, validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise _invalid("is not JSON in base64") from None
    if not is_object(found):
        raise _invalid("is not an object of JSON")
    return found


def _condition(condition: object) -> tuple[str, object, object]:
    """Return operator, name and value."""
    if is_object(condition) and len(condition) == 1:
        ((name, value),) = condition.items()
        return "eq", name, value
    if is_list(condition) and len(condition) == 3:
        operator = str(condition[0]).lower()
        if operator in ("eq", "starts-with", "content-length-range"):
            return operator, condition[1], condition[2]
    raise _invalid("has a condition that is none")


def _number(value: object) -> int:
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise _invalid("has a content-length-range that is not of numbers")
    return int(text)


def _invalid(what: str) -> S3Error:
    return S3Error("InvalidPolicyDocument", f"The policy {what}.")
