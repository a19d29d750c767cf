"""Fetches and prepares what a job's ranks need before they start on a machine: data, code, environments."""
