"""Online admission by prices over whole schedules: the theorem behind Hadar, with its certificate."""
