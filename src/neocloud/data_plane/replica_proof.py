"""Proof of a model server that it has its key, before the key or a prompt is sent to it.

Where others may run programs at a replica's address, as on a Slurm cluster, an answer says nothing about who
gives it. So each new connection begins with a challenge. The answer is a digest of the challenge and of the
address at which the model server took the connection: who passes the challenge on to a model server elsewhere
gets the digest of that other address. `services/inference/model_server_key.py` answers; it runs in the model
server and imports nothing of this package.
"""

import hashlib
import hmac
import secrets

PATH = "/neocloud/proof"
CHALLENGE_HEADER = "X-Neocloud-Challenge"
CONTEXT = "neocloud replica proof"
ANSWER_BYTES = 4096
"""Longest answer to a challenge, with its head."""


def new_challenge() -> str:
    return secrets.token_hex(32)


def proof(key: str, challenge: str, address: str) -> bytes:
    """Return what the holder of the key answers that took the connection at an address, such as
    "10.89.3.4:20000"."""
    text = "\n".join((CONTEXT, challenge, address)).encode()
    return hmac.new(key.encode(), text, hashlib.sha256).hexdigest().encode()


def challenge_request(address: str, challenge: str) -> bytes:
    """Return the first request on a connection."""
    return f"GET {PATH} HTTP/1.1\r\nHost: {address}\r\n{CHALLENGE_HEADER}: {challenge}\r\n\r\n".encode()


def is_proof(answer: bytes, key: str, challenge: str, address: str) -> bool:
    """Return whether the body of an answer is the proof. No key proves nothing."""
    return bool(key) and hmac.compare_digest(answer, proof(key, challenge, address))
