# pyright: standard
"""A client of S3 for a key that is in memory, which nothing else of the machine's settings changes.

It is slow to import.
"""

import os
from functools import cache
from typing import cast

import botocore.session
from botocore.config import Config
from botocore.credentials import CredentialProvider, CredentialResolver, Credentials
from botocore.loaders import Loader, create_loader

from neocloud.core.s3_calls import S3

CONNECTIONS = 32
_NOTHING = os.devnull


class _OneKey(CredentialProvider):
    METHOD = CANONICAL_NAME = "neo"

    def __init__(self, credentials: Credentials) -> None:
        super().__init__()
        self._credentials = credentials

    def load(self) -> Credentials:
        return self._credentials


@cache
def _loader() -> Loader:
    """Return what reads the descriptions of S3, once a process."""
    return create_loader()


def s3_client(credentials: Credentials, url: str, region: str, ca_file: str = "", *, attempts: int) -> S3:
    """Return a client that signs with this key; `ca_file` has another authority to trust."""
    apart = {
        "profile": (None, None, None, None),
        "config_file": (None, None, _NOTHING, None),
        "credentials_file": (None, None, _NOTHING, None),
    }
    session = botocore.session.Session(session_vars=apart)
    session.register_component("data_loader", _loader())
    session.register_component("credential_provider", CredentialResolver([_OneKey(credentials)]))
    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": "path"},
        retries={"mode": "standard", "max_attempts": attempts},
        max_pool_connections=CONNECTIONS,
        request_checksum_calculation="when_supported",
        response_checksum_validation="when_supported",
        proxies={},
    )
    verify = ca_file or True
    client = session.create_client("s3", region_name=region, endpoint_url=url, verify=verify, config=config)
    return cast(S3, client)  # its methods are made at run time
