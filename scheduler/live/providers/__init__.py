"""Machines from outside: rented, priced, watched, given back."""
