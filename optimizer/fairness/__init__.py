"""How good a share of time is for a job: the utilities that fair policies equalise."""
