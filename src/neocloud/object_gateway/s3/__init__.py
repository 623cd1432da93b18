"""S3 over HTTP on the object store."""
