"""`neo tune` and `neo tuning job`: fine-tuning."""
