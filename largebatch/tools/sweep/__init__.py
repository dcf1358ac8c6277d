"""Sweeps: many trainings that differ in a few options, searched, run in parallel and resumed."""
