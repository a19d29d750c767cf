"""Who may come in: people, agents, jobs."""
