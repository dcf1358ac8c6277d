"""Set-up, step functions, loop, evaluation and the session of a run."""
