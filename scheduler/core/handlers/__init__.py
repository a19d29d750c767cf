"""What each kind of event changes: jobs, attempts, machines, deadlines, budgets."""
