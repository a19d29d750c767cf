"""What no schedule can beat: lower bounds on job completion times and makespan, for any policy, live or clairvoyant."""
