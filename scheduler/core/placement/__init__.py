"""Where a gang runs: attempts, reservations, preemption, and places for planned gangs."""
