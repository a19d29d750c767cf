"""Shockwave's simulator (NSDI 2023), a fork of Gavel's: rounds of 120 s, jobs that change their batch size, and
restarts that cost time.
"""
