"""What elastic policies share: growth and restarts remembered, and one configuration for each job chosen exactly."""
