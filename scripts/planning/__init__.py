"""Parts of `scripts/plan.py`."""
