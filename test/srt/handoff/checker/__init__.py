"""Every interleaving of the handoff's two machines, their network and their schedulers: `python -m checker`."""
