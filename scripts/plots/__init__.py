"""Pictures for the documentation, from records."""
