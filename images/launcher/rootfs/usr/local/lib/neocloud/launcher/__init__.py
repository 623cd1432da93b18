"""Run one virtual machine in the container that is its pod. Python 3.11 or newer, standard library only."""
