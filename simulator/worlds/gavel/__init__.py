"""Gavel (OSDI 2020, commit c4fa400): its round mechanism, its policies and its simulator's time model, in every detail
that affects a completion time.
"""
