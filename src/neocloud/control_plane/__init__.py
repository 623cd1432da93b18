"""The control plane as one process: what it is made of, its settings, how it starts, runs and ends."""
