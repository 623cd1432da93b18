"""The cloud on this machine: its state folder, its server process, the images it needs."""
