# pyright: strict
"""The bricks: one folder a service, the same few files in each. See docs/howto/add-a-service.md."""
