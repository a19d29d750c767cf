"""Goodput (throughput x statistical efficiency) of jobs whose batch size and gang may change."""
