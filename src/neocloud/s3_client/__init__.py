"""S3 endpoints as a client asks them: of transfers, and of the engine that keeps the blobs."""
