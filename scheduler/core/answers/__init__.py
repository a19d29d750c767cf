"""What people ask of the core: why, what is wrong, whether ever."""
