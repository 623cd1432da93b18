"""The registry of container images: the OCI distribution protocol, version 1.1, on the object store."""
