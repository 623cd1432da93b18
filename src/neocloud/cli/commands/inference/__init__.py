"""`neo model`, `neo deploy` and `neo deployment`: serving models."""
