"""Machines rented from outside: providers, provisioning, the janitor, market prices."""
