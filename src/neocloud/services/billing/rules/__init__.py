"""Prices, estimates, rating and pricing policies. Pure."""
