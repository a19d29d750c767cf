"""What docs/results.md states, measured. `python -m benchmarks` runs everything; see `benchmarks/__main__.py`."""
