"""The HTTP side of the gateway: connections, requests, errors."""
