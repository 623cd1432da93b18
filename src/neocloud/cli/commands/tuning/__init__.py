# pyright: strict
"""`neo tune` and `neo tuning job`: fine-tuning."""
