"""Save, verify, restore and prune checkpoints; the run directory and its lock."""
