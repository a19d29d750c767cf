"""Decisions made in stages, and the prices that people see of them."""
