"""A certificate of a public authority, ordered by ACME and renewed while the cloud runs."""
