"""Parts of scripts/soak.py."""
