"""One module per command of `neo`, loaded when the command is used."""
