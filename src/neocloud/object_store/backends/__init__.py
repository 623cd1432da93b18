"""Storage backends of buckets: blobs, or files of a shared filesystem."""
