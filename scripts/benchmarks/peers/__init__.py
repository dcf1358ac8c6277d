"""Other input pipelines on the same records: each module has `prepare`, see `benchmarks.runner`."""
