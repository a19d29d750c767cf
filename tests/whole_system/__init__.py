"""The whole system in one process, in virtual time, from one seed, under faults (`make fuzz`)."""
