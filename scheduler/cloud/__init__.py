"""Providers of rented machines and the models of their markets."""
