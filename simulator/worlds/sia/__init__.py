"""Sia's simulator (SOSP 2023) with the Gavel that it is compared with: adaptive jobs on three types of accelerators."""
