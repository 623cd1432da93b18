"""Copy files and objects: places, what is in them, what has to be done, and the transfers."""
