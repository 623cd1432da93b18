"""Encryption at rest: each body has a data key of its own, which is stored sealed by the key of the store or
by a key that the client brings with each request.

A body is cut into frames of 64 KiB. Each is sealed by AES-256-GCM with its number as the nonce, so frames
cannot be exchanged or changed, and a range needs its own frames alone. That a body is whole follows from its
size, which the metadata has.
"""

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FRAME_BYTES = 64 * 1024
TAG_BYTES = 16
SEALED_FRAME_BYTES = FRAME_BYTES + TAG_BYTES
KEY_BYTES = 32
_NONCE_BYTES = 12


class NotAuthentic(Exception):
    """These are not the bytes that were sealed with this key."""


class KeySealer:
    """Seals data keys by another key."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        self._cipher = AESGCM(key)

    def seal(self, data_key: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data_key, None)

    def open(self, sealed: bytes) -> bytes:
        """Raises NotAuthentic."""
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
        except (InvalidTag, ValueError) as error:
            raise NotAuthentic from error


class FrameCipher:
    """Seals and opens the frames of one body."""

    def __init__(self, data_key: bytes) -> None:
        self._cipher = AESGCM(data_key)

    def seal(self, first_frame: int, plain: bytes) -> bytes:
        """Seal whole frames; only the last of the body may be shorter."""
        sealed = bytearray(sealed_size(len(plain)))
        self.seal_into(first_frame, memoryview(plain), memoryview(sealed))
        return bytes(sealed)

    def seal_into(self, first_frame: int, plain: memoryview, sealed: memoryview) -> None:
        """Do what `seal` does into a buffer of exactly `sealed_size`."""
        for number, start in enumerate(range(0, max(len(plain), 1), FRAME_BYTES)):
            frame, at = plain[start : start + FRAME_BYTES], number * SEALED_FRAME_BYTES
            place = sealed[at : at + len(frame) + TAG_BYTES]
            self._cipher.encrypt_into(_nonce(first_frame + number), frame, None, place)

    def open(self, first_frame: int, sealed: bytes) -> bytes:
        """Raises NotAuthentic."""
        view = memoryview(sealed)
        try:
            frames = [
                self._cipher.decrypt(_nonce(first_frame + number), view[at : at + SEALED_FRAME_BYTES], None)
                for number, at in enumerate(range(0, len(sealed), SEALED_FRAME_BYTES))
            ]
        except (InvalidTag, ValueError) as error:
            raise NotAuthentic from error
        return frames[0] if len(frames) == 1 else b"".join(frames)


def sealed_size(size: int) -> int:
    """Return the size of the frames of a body, or of a part of it that begins with a frame."""
    return size + max(1, -(-size // FRAME_BYTES)) * TAG_BYTES


def new_data_key() -> bytes:
    return os.urandom(KEY_BYTES)


def _nonce(frame: int) -> bytes:
    return frame.to_bytes(_NONCE_BYTES, "big")
