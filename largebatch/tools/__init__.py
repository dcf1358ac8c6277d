"""What the commands call: report, sweep, reproduction records, recipe pages."""
