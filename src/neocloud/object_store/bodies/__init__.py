"""Bodies on their way in and out: quota (quota_reservations.py), writing (writer.py), reading (reader.py)."""
