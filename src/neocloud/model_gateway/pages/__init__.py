"""The chat and playground page at /chat, and its sign-in.

Requests of the page to models go through the proxy, its limits and its ledger like any other request.
"""
