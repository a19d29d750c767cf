"""Calculators behind `walras plan`, `recommend` and `search`: what to rent for a job, and how to run it there."""
