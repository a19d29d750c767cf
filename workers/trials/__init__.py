"""Runs a job's script on this machine without a server: to profile it, or to search for its best configuration."""
