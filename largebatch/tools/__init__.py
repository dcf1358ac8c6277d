"""What the commands call: report, sweep, doctor, reproduction records, recipe pages."""
