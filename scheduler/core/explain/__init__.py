"""Explanations: why a job waits, whether it could ever run, and what would help. Computed when a person asks."""
