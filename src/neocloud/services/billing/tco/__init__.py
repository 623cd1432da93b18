"""The monthly cost of owning a cluster for training and serving (TCO): a plan and a price list in, rows and
notes out. Pure. Money is Decimal."""
