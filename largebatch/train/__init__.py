"""Train state, step functions, loop, evaluation and checkpoints."""
