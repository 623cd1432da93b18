"""The machines: what they have."""
