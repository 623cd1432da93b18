"""What a request may take, and what it took: limits, budgets, and the ledger of tokens.

Knows nothing of HTTP or of engines. The proxy opens an account for each request and closes it exactly once.
"""

from neocloud.gateway.accounts.base import Account, Accounts, Opening, TokenUsage
from neocloud.gateway.accounts.book import AccountBook
from neocloud.gateway.accounts.ledger import Ledger, open_ledger
from neocloud.gateway.accounts.reader import LedgerReader, ledger_reader
from neocloud.gateway.accounts.schema import LedgerError, ledger_file

__all__ = [
    "Account",
    "AccountBook",
    "Accounts",
    "Ledger",
    "LedgerError",
    "LedgerReader",
    "Opening",
    "TokenUsage",
    "ledger_file",
    "ledger_reader",
    "open_ledger",
]
