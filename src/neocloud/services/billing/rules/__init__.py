"""What things cost. Pure."""
