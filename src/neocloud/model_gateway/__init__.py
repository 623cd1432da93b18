"""The OpenAI-compatible data plane: one process, one port.

It calls the control plane through `neocloud.inference.v1.GatewayService`, and with the tokens of callers on
their behalf. It keeps serving known models while the control plane is not reachable, and owns the folder
`<home>/gateway/`.
"""

import os

# The gateway starts programs and never continues in Python after a fork. uvloop's fork() would run gRPC's
# fork handlers, which now and then crash the child before its program starts, and break the parent's calls.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"  # read when grpc is imported
