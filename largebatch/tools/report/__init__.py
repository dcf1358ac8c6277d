"""Read the files of runs and write a report: one HTML page, and a PNG file of each figure."""
