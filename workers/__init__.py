"""What runs on a machine of the cluster: the agent, the supervisor of each attempt, and trials without a server."""
