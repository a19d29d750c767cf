"""Hadar's decision for one round: prices per pool, the best gang of each job at them, and room for upgrades."""
