"""Objects in buckets: SQL metadata and immutable blobs, without HTTP. README.md lists the files."""
