"""Experiments on small data that ask what a choice does to accuracy; each trains for real."""
