"""The cycle: events in, commands out. No clock, randomness, I/O, threads or logging."""
