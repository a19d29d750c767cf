"""Sia's simulator (SOSP 2023) with the Gavel with which it is compared: adaptive jobs on three accelerator types."""
