"""What orders of jobs lead to: schedules, lanes, ranks, and a bound to measure them by."""
