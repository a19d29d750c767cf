"""Solving one objective over classes of jobs: one entry, exact solvers and three engines of our own."""
