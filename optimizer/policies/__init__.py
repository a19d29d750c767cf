"""Policies, one file each."""
