"""What docs/results.md is made of. `python -m benchmarks` runs everything; see `benchmarks/__main__.py`."""
