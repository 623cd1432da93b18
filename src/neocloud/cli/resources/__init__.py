"""Commands for resource kinds, derived from the contract: a new kind is one entry in `products.py`."""
