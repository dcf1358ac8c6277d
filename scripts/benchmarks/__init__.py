"""The subcommands of `scripts/benchmark.py`, and the modules that they share.

`measure` has results and records, `competitor` races; `training` is the training step as a
competitor, `feeding` the input pipeline, and `peers` has the other libraries.
"""
