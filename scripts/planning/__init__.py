"""What `scripts/plan.py` is made of."""
