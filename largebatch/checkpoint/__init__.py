"""Checkpoints (save, verify, restore, prune), the run directory and its lock."""
