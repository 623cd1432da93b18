"""Buckets whose objects are blobs."""
