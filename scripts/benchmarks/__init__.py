"""What `scripts/benchmark.py` measures: one module for each subcommand, and what they share."""
