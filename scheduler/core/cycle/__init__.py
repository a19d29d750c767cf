"""The scheduling round (start with `round.py`): arrivals, backfill, solve requests and profiling leases."""
