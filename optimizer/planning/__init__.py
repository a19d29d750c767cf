"""Calculators behind `walras cloud`: what to rent for a job, and how to run it there."""
