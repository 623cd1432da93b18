"""The OpenAI-compatible data plane: a process of its own, one port.

Speaks with the control plane only through `neocloud.inference.v1.GatewayService` and, on behalf of callers,
with their own tokens. Goes on serving what it knows when the control plane is away. Owns its files:
`<home>/gateway/`.
"""
