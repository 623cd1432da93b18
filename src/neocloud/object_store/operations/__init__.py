"""What an `ObjectStore` does, by topic."""
