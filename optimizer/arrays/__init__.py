"""Rows, entries and owners: array arithmetic that knows nothing of jobs."""
