"""State of the core: jobs, machines, speeds, money, queues, reservations. No decisions."""
