"""The process that serves object storage: S3, container images, and the work that the control plane lists."""
