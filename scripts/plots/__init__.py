"""Plots for the documentation, from records."""
