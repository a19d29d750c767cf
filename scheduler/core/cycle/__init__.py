"""One scheduling round (start with `round.py`): arrivals, backfill, solves, profiling leases."""
