"""What is brought or made on a machine before a job's ranks start there: data, code, environments."""
