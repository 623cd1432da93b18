"""Who calls, and under which host name."""
