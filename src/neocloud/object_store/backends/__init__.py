"""Where the objects of a bucket are kept: as blobs, or as files of a shared filesystem."""
