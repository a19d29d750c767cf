"""At most one configuration per job within capacity: exact, by local search, by integer program, and greedy."""
