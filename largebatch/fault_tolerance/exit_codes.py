"""Exit codes, for launchers that requeue."""

FAILED = 1
"""A defect of the program: a traceback says where."""
MISTAKE = 2
"""Something that the user can mend; one line says what."""
PEER = 69
"""Another process of the run ended first (EX_UNAVAILABLE); the same command resumes."""
HUNG = 70
"""No progress within the limit of a section (EX_SOFTWARE); the same command resumes."""
PREEMPTED = 75
"""Stopped by a signal or a time limit (EX_TEMPFAIL); the same command resumes."""
INTERRUPTED = 130
"""Ctrl-C in a command that has nothing to save (128 + SIGINT)."""
