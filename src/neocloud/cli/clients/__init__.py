"""What other programs need to be told to use this cloud: pure text, from a `Target` to `Plan`s of files.

Nothing here touches a disk; `commands/client_config.py` does.
"""
