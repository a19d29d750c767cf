"""Orderings: how waiting and running jobs are ordered by shares of time, by a policy's rank, or by a plan."""
