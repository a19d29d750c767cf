"""The simulator of the Pollux artifact (OSDI 2021) with its Tiresias and its Optimus, to the last detail that moves a
completion time."""
