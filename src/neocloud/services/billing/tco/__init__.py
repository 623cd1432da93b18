"""What owning a cluster for training and serving costs in a month (TCO). Pure: a plan and a price list in,
rows and notes out. Money is Decimal; nothing here knows who asks."""
