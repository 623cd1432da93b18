"""Metering: rate limits, budgets, and the ledger of tokens. See README.md."""
