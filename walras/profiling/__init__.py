"""Profiles of a job's script: the runs, their measurements, and how a profile is stored and drawn."""
