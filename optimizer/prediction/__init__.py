"""Speeds nobody measured, and steps to a target nobody reached yet: fitted models with intervals."""
