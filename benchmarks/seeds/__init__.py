"""Published systems whose ideas Walras began with, computed again from their papers' own numbers: one command each.

    python -m benchmarks.seeds.scavenger

A command prints each figure of the paper beside ours, and exits 1 if one differs.
"""
