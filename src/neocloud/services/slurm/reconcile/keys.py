"""The keys of a cluster: made once, and kept in the store."""

import secrets

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from neocloud.core.reconcile.reconciler import Context
from neocloud.services.slurm.render import ClusterSecrets
from neocloud.services.slurm.types import Secret

SLURM_KEY_BYTES = 1024
JWT_KEY_BYTES = 32


async def cluster_secrets(context: Context) -> ClusterSecrets:
    """Return the secrets of a cluster; each is made once and kept, encrypted, until the cluster is gone."""
    return ClusterSecrets(
        slurm_key=await context.secret(Secret.SLURM_KEY, lambda: secrets.token_bytes(SLURM_KEY_BYTES)),
        jwt_key=await context.secret(Secret.JWT_KEY, lambda: secrets.token_bytes(JWT_KEY_BYTES)),
        database_password=(
            await context.secret(Secret.DATABASE_PASSWORD, lambda: secrets.token_hex(32).encode())
        ).decode(),
        ssh_host_key=(await context.secret(Secret.SSH_HOST_KEY, _new_ssh_host_key)).decode(),
        worker_host_key=(await context.secret(Secret.WORKER_HOST_KEY, _new_ssh_host_key)).decode(),
    )


def public_host_key(private_key: str) -> str:
    """Return the "ssh-ed25519 AAAA..." line of a host key."""
    key = load_ssh_private_key(private_key.encode(), password=None)
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _new_ssh_host_key() -> bytes:
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
