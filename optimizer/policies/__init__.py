"""Scheduling policies: one file per policy, or per family of close variants."""
