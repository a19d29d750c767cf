"""What people, agents and jobs ask of the server: checked, made steps of the event loop, answered."""
