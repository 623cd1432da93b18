"""Files, batches and fine-tuning jobs of the OpenAI API.

Owns `<home>/gateway/files.db`, `files/` and `batches/`. Batches are sent through the proxy, fine-tuning jobs
to the control plane with the token of the caller. This package imports nothing, so that the validation
process starts quickly.
"""
