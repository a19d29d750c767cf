"""Providers of rented machines: the protocol that the scheduler speaks to a cloud, and a simulated cloud."""
