"""The chat and playground page at /chat, and who is signed in there.

What the page asks of models goes the way of any other request: through the proxy, its limits and its ledger.
"""

from neocloud.gateway.pages.wiring import Pages

__all__ = ["Pages"]
