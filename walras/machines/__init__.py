"""What is said of a machine: its parts, tools, devices and how long rented ones last."""
