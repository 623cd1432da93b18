"""Scripts that run inside a cluster during readiness checks. They import nothing of Neocloud's."""
