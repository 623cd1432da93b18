"""The services: one folder each, with the same few files. See docs/howto/add-a-service.md."""
