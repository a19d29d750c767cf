"""What is known: jobs, machines, speeds, money. Kept and counted; nothing here decides."""
