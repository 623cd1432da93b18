"""Blobs in a bucket of another S3 engine."""
