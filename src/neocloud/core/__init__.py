"""Ideas that all services share. Knows no product noun and imports nothing above itself."""
