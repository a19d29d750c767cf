"""Profiling a job: the runs that tell its stalls apart, what came of them, and how it is shown."""
