"""What a run was, for people: figures and one page out of the files that it left behind.

This room reads the files of finished, broken and running trainings; it trains nothing and writes
nothing into them but its own folder.
"""
