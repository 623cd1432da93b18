"""The launcher's modules, imported from where the image takes them."""
