"""A discrete-event simulator around the scheduler core: virtual time, machines, jobs, faults and metrics."""
