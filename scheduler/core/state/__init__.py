"""What the core knows: jobs, machines, speeds, money, queues, reservations. No decisions."""
