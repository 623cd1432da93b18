"""What callers keep at the gateway and ask of it beside single requests: files, batches, fine-tuning jobs.

Not on the hot path. Owns `<home>/gateway/files.db`, `files/` and `batches/`, and sends on nothing itself:
batches go through the proxy, fine-tuning jobs to the control plane with the caller's own token. This package
imports nothing, so that the checker of files starts quickly: see `wiring` for what the gateway mounts.
"""
