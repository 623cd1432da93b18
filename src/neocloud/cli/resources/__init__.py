"""Commands for resource kinds, derived from the contract: a new kind is one line in `nouns.py`."""
