"""The OpenAI-compatible data plane: a process of its own, one port.

Speaks with the control plane only through `neocloud.inference.v1.GatewayService` and, on behalf of callers,
with their own tokens. Goes on serving what it knows when the control plane is away. Owns its files:
`<home>/gateway/`.
"""

import os

# The gateway starts programs and never goes on in Python after a fork. uvloop's fork() would run gRPC's fork
# handlers, which now and then crash the child before its program starts, and break the parent's calls.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"  # read when grpc is imported
