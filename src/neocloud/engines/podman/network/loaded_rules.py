"""Load rules only when they are not in the kernel as they were loaded.

The kernel counts the changes of the rule set of a network namespace, and has a number for it: its generation.
As long as that is the one after our own change, our rules were not changed or removed.
"""

import socket
import struct

from neocloud.engines.podman.network.security_rules import load

_NETFILTER = 12
_GET_GENERATION, _GENERATION = 10 << 8 | 16, 10 << 8 | 15
"""NFT_MSG_GETGEN and NFT_MSG_NEWGEN of NFNL_SUBSYS_NFTABLES."""
_REQUEST = 1
_HEADER, _FAMILY, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBH"), struct.Struct("=HHI")
_ID = 1
_ANSWER_SECONDS = 1.0


class LoadedRules:
    """The rules that this process loaded last."""

    def __init__(self) -> None:
        self._rules = ""
        self._generation: int | None = None
        """After they were loaded; None when they were not, or another change came between."""

    async def load(self, rules: str) -> bool:
        """Load the rules unless they are loaded; return whether they differ from the last. Raises
        EngineError."""
        before = generation()
        is_new = rules != self._rules
        if not is_new and before is not None and before == self._generation:
            return False
        self._generation = None
        await load(rules)
        after = generation()
        self._rules = rules
        if before is not None and after == before + 1:
            self._generation = after
        return is_new


def generation() -> int | None:
    """Return the number of the rule set in this network namespace; None if the kernel does not say it."""
    request = _HEADER.pack(_HEADER.size + _FAMILY.size, _GET_GENERATION, _REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER) as wire:
            wire.settimeout(_ANSWER_SECONDS)
            wire.sendto(request + _FAMILY.pack(0, 0, 0), (0, 0))
            answer = wire.recv(4096)
        _, kind, *_ = _HEADER.unpack_from(answer)
        _, name, number = _ATTRIBUTE.unpack_from(answer, _HEADER.size + _FAMILY.size)
    except (OSError, struct.error):
        return None
    return socket.ntohl(number) if (kind, name) == (_GENERATION, _ID) else None
