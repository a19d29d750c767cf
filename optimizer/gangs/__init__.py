"""What whole gangs can do: over several pools, and at one instant."""
