"""Other libraries doing the same work: each module has functions for `competitor.Competitor`."""
