"""What a share of time is worth to a job, and what projects and users are entitled to."""
