"""Inventories: lists of the objects of buckets, which the object gateway writes for InventoryService."""
