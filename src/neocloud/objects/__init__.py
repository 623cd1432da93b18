"""Object storage: an S3 front on SQL metadata and immutable blobs. README.md says which file does what."""
