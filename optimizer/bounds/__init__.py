"""Lower bounds on job completion times and makespan that hold for every policy, clairvoyant ones included."""
