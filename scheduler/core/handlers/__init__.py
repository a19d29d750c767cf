"""Handlers: what each kind of event changes in jobs, attempts, machines, deadlines and budgets."""
