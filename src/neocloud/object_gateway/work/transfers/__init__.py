"""Transfers of objects between S3 endpoints: what the object gateway does for TransferService."""
