"""SSH public keys of user accounts: listed, added and removed by the account itself.

A key opens Slurm clusters for as long as it is there, so a sign-in that is limited to some permissions, or of
somebody who acts as the account, may not add one.
"""

from neocloud.core import contract
from neocloud.core.service import Call, Method, Write
from neocloud.core.ssh_keys import is_public_key, without_comment
from neocloud.core.store.protocol import Transaction
from neocloud.messages.neocloud.iam.v1 import (
    AddSshKeyRequest,
    AddSshKeyResponse,
    ListSshKeysRequest,
    ListSshKeysResponse,
    RemoveSshKeyRequest,
    RemoveSshKeyResponse,
)
from neocloud.services.iam.access.users import is_usable, put_ssh_keys, ssh_keys_of

SERVICE = "neocloud.iam.v1.SshKeyService"
MAX_SSH_KEYS = 20


async def list_keys(call: Call, request: ListSshKeysRequest) -> ListSshKeysResponse:
    account_id = _own_id(call)
    return ListSshKeysResponse(
        public_keys=await call.dependencies.store.read(lambda tx: ssh_keys_of(tx, account_id))
    )


async def add(call: Call, request: AddSshKeyRequest) -> Write[AddSshKeyResponse]:
    account_id = _own_id(call)
    if call.subject is None or call.subject.scopes is not None or call.subject.impersonator_id:
        raise contract.ApiError(
            contract.Code.PERMISSION_DENIED, "Only a sign-in without limits may add an SSH key: neo login"
        )
    if not is_public_key(request.public_key):
        raise contract.bad_field(
            "public_key",
            'is not an SSH public key; give one line such as "ssh-ed25519 AAAA... you@host", without options'
            " (the .pub file, never the private key)",
        )
    key = request.public_key.strip()

    def put(tx: Transaction) -> AddSshKeyResponse:
        row = tx.get(account_id)
        if row is None or not is_usable(tx, row):
            raise contract.not_found("account", account_id)
        keys = ssh_keys_of(tx, account_id)
        if without_comment(key) not in map(without_comment, keys):
            if len(keys) >= MAX_SSH_KEYS:
                raise contract.bad_state(
                    account_id, f"The account has {MAX_SSH_KEYS} SSH keys already. Remove one first."
                )
            put_ssh_keys(tx, account_id, [*keys, key])
        return AddSshKeyResponse()

    return Write(put)


async def remove(call: Call, request: RemoveSshKeyRequest) -> Write[RemoveSshKeyResponse]:
    account_id, key = _own_id(call), without_comment(request.public_key)

    def drop(tx: Transaction) -> RemoveSshKeyResponse:
        keys = ssh_keys_of(tx, account_id)
        kept = [each for each in keys if without_comment(each) != key]
        if len(kept) == len(keys):
            raise contract.bad_field("public_key", "is not a key of the account")
        put_ssh_keys(tx, account_id, kept)
        return RemoveSshKeyResponse()

    return Write(drop)


def _own_id(call: Call) -> str:
    if call.subject is None or call.subject.kind != "user":
        raise contract.ApiError(
            contract.Code.FAILED_PRECONDITION, "Only people have SSH keys. Sign in as a user: neo login"
        )
    return call.subject.id


METHODS = (
    Method(f"{SERVICE}/List", list_keys, permission=""),
    Method(f"{SERVICE}/Add", add, permission="", is_change=True),
    Method(f"{SERVICE}/Remove", remove, permission="", is_change=True),
)
