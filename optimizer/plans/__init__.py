"""Who runs where now: what a place is worth to a job, the assignment at prices, and the guard against starvation."""
