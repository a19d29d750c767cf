"""Workloads: jobs read from the formats that others publish, or generated from stated distributions."""
