"""Access keys for the S3 protocol, in both versions of the API, and the delivery of their secrets.

One kind of row serves both versions. Version 1 shows the secret once. Version 2 follows the delivery mode of
the key: INLINE in the status, for callers who may get secrets, or EXPLICIT (the default) by GetSecret.
"""

from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import Message

from neocloud.core import contract, wire
from neocloud.core.service import Call, Method, MethodAlias, Write
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.iam import v1
from neocloud.messages.nebius.iam.v1 import GetAccessKeySecretOnceRequest, GetAccessKeySecretOnceResponse
from neocloud.messages.nebius.iam.v2 import (
    AccessKey,
    ActivateAccessKeyByAwsIdRequest,
    ActivateAccessKeyRequest,
    CreateAccessKeyRequest,
    DeactivateAccessKeyByAwsIdRequest,
    DeactivateAccessKeyRequest,
    DeleteAccessKeyByAwsIdRequest,
    DeleteAccessKeyRequest,
    GetAccessKeyByAwsIdRequest,
    GetAccessKeyRequest,
    GetAccessKeySecretRequest,
    GetAccessKeySecretResponse,
    ListAccessKeysByAccountRequest,
    ListAccessKeysRequest,
    ListAccessKeysResponse,
    UpdateAccessKeyRequest,
)
from neocloud.messages.nebius.iam.v2 import SecretDeliveryMode as DeliveryMode
from neocloud.services.iam.access.account_keys import ensure_secret, show_secret_once
from neocloud.services.iam.access.authorization import refused
from neocloud.services.iam.api.keys import account_of, by_id, list_keys_of, switches
from neocloud.services.iam.rules.keys import key_id_of, show_expiry
from neocloud.services.iam.types import ACCESS_KEY

M = TypeVar("M", bound=Message)
KeyIdRequest = v1.ActivateAccessKeyRequest | v1.DeactivateAccessKeyRequest | v1.DeleteAccessKeyRequest
AwsIdRequest = (
    v1.GetAccessKeyByAwsIdRequest
    | GetAccessKeyByAwsIdRequest
    | DeleteAccessKeyByAwsIdRequest
    | ActivateAccessKeyByAwsIdRequest
    | DeactivateAccessKeyByAwsIdRequest
)
V1, V2 = "nebius.iam.v1.AccessKeyService", "nebius.iam.v2.AccessKeyService"
GET_SECRET = "iam.accessKeys.getSecret"
INLINE = DeliveryMode.Value("INLINE")


async def get(call: Call, request: GetAccessKeyRequest) -> AccessKey:
    key = await call.dependencies.store.read(lambda tx: _message(tx, call, request.id))
    if key.spec.secret_delivery_mode == INLINE and await _may_see_secret(call, request.id):
        key.status.secret = await call.dependencies.store.write(lambda tx: _secret_of(tx, request.id))
    return key


async def get_secret(call: Call, request: GetAccessKeySecretRequest) -> Write[GetAccessKeySecretResponse]:
    def find(tx: Transaction) -> GetAccessKeySecretResponse:
        key = wire.message(_key(tx, request.id), AccessKey)
        if key.spec.secret_delivery_mode == INLINE:
            raise contract.bad_state(
                request.id,
                f"The secret of {request.id} is delivered INLINE: it is in the status of the key.",
            )
        secret = ensure_secret(tx, request.id)
        return GetAccessKeySecretResponse(aws_access_key_id=key.status.aws_access_key_id, secret=secret)

    return Write(find)


async def get_secret_once(
    call: Call, request: GetAccessKeySecretOnceRequest
) -> Write[GetAccessKeySecretOnceResponse]:
    def show(tx: Transaction) -> GetAccessKeySecretOnceResponse:
        return GetAccessKeySecretOnceResponse(secret=show_secret_once(tx, _key(tx, request.id).id))

    return Write(show)


async def list_by_account(call: Call, request: ListAccessKeysByAccountRequest) -> ListAccessKeysResponse:
    items, token = await list_keys_of(call, request, AccessKey)
    return ListAccessKeysResponse(items=items, next_page_token=token)


def _message(tx: Transaction, call: Call, key_id: str) -> AccessKey:
    key = wire.message(_key(tx, key_id), AccessKey)
    show_expiry(key, call.dependencies.clock.now())
    return key


async def _may_see_secret(call: Call, key_id: str) -> bool:
    def is_allowed(tx: Transaction) -> bool:
        return call.subject is not None and refused(tx, call.subject, GET_SECRET, key_id) is None

    return await call.dependencies.store.read(is_allowed)


def _secret_of(tx: Transaction, key_id: str) -> str:
    return ensure_secret(tx, _key(tx, key_id).id)


def _key(tx: Transaction, key_id: str) -> Resource:
    row = tx.get(key_id)
    if row is None or row.kind != ACCESS_KEY:
        raise contract.not_found("access key", key_id)
    return row


def _same(message_class: type[M]) -> Callable[[Message], M]:
    """Translate a message into another version's, which has the same fields under the same numbers."""
    return lambda message: message_class.FromString(message.SerializeToString())


def _identified(message_class: Callable[..., M]) -> Callable[[KeyIdRequest], M]:
    """Translate a request of version 1, which names a key by either id inside a message of its own."""

    def translate(request: KeyIdRequest) -> M:
        aws_id = request.id.aws_access_key_id
        return message_class(id=key_id_of(aws_id) if aws_id else request.id.id)

    return translate


def _by_aws_id(message_class: Callable[..., M]) -> Callable[[AwsIdRequest], M]:
    return lambda request: message_class(id=key_id_of(request.aws_access_key_id))


METHODS = (
    Method(f"{V2}/Get", get, "iam.accessKeys.get", target=by_id),
    Method(f"{V2}/GetSecret", get_secret, GET_SECRET, target=by_id, is_change=True),
    Method(f"{V1}/GetSecretOnce", get_secret_once, GET_SECRET, target=by_id, is_change=True),
    Method(f"{V2}/ListByAccount", list_by_account, "iam.accessKeys.list", target=account_of),
    *switches(ACCESS_KEY, V2, "iam.accessKeys.update"),
)

_V1_KEY = _same(v1.AccessKey)
_V1_LIST = _same(v1.ListAccessKeysResponse)

ALIASES = (
    MethodAlias(f"{V1}/Create", f"{V2}/Create", _same(CreateAccessKeyRequest)),
    MethodAlias(f"{V1}/Update", f"{V2}/Update", _same(UpdateAccessKeyRequest)),
    MethodAlias(f"{V1}/GetById", f"{V2}/Get", _same(GetAccessKeyRequest), _V1_KEY),
    MethodAlias(f"{V1}/GetByAwsId", f"{V2}/Get", _by_aws_id(GetAccessKeyRequest), _V1_KEY),
    MethodAlias(f"{V1}/List", f"{V2}/List", _same(ListAccessKeysRequest), _V1_LIST),
    MethodAlias(
        f"{V1}/ListByAccount",
        f"{V2}/ListByAccount",
        _same(ListAccessKeysByAccountRequest),
        _V1_LIST,
    ),
    MethodAlias(f"{V1}/Activate", f"{V2}/Activate", _identified(ActivateAccessKeyRequest)),
    MethodAlias(f"{V1}/Deactivate", f"{V2}/Deactivate", _identified(DeactivateAccessKeyRequest)),
    MethodAlias(f"{V1}/Delete", f"{V2}/Delete", _identified(DeleteAccessKeyRequest)),
    MethodAlias(f"{V2}/GetByAwsId", f"{V2}/Get", _by_aws_id(GetAccessKeyRequest)),
    MethodAlias(f"{V2}/DeleteByAwsId", f"{V2}/Delete", _by_aws_id(DeleteAccessKeyRequest)),
    MethodAlias(f"{V2}/ActivateByAwsId", f"{V2}/Activate", _by_aws_id(ActivateAccessKeyRequest)),
    MethodAlias(f"{V2}/DeactivateByAwsId", f"{V2}/Deactivate", _by_aws_id(DeactivateAccessKeyRequest)),
)
