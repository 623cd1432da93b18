"""Object storage from a shell: places, copies, transfers, mounts, and the commands of `neo storage`."""
