"""Gavel (OSDI 2020, commit c4fa400): its round mechanism, its policies and its simulator's time model, to the last
detail that moves a completion time."""
