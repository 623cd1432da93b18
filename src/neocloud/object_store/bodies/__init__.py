"""Bodies on their way in and out: room for them (engine.py), writing (writer.py), reading (reader.py)."""
