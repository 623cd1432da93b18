"""Bodies on their way in and out: quota (room.py), writing (writer.py), reading (reader.py)."""
