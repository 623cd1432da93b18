"""What is legal, and which role may do what. Pure."""
