"""Events go to the core, its commands change the live state, one transaction commits, effects follow."""
