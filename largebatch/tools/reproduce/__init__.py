"""Timed reproduction of a published run, and its record."""
