"""Configuration files that other clients need to use this cloud: pure text, from a `Target` to a `Plan`.

Nothing here touches a disk; `commands/client_config.py` does.
"""
