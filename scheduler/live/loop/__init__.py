"""The event loop: events go to the core, commands change the live state, a transaction commits, effects follow."""
