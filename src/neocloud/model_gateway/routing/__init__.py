"""From a model request to a replica and back."""
