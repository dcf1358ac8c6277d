"""What `scripts/benchmark.py` measures: a module for each subcommand, and what they share.

`measure` has results and records, `competitor` races; `training` is the training step as a
competitor, `feeding` the input pipeline, and `peers` has the other libraries.
"""
