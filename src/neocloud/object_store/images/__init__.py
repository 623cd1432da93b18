"""Container images of registries: blobs, manifests and tags."""
