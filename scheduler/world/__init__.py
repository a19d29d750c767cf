"""One simulated world, around a core: virtual time, attempts, machines; what jobs can do there is a parameter."""
