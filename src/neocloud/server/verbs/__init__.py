"""The six standard verbs for any kind, and the operations of all kinds. No verb knows a resource by name."""
