"""What `scripts/benchmark.py` measures: a module for each subcommand, and what they share."""
