"""Workloads: jobs read from published trace formats (`formats.py` lists them), generated, or described in numbers."""
