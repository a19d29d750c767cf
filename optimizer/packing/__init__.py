"""Space sharing: two jobs at a time on the same accelerators, chosen together with everybody's shares of time."""
