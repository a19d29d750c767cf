"""Profiles of a job's script: which runs are made, what is measured in them, how a profile is stored and drawn."""
