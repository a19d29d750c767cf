"""The server's services for people, agents and jobs: they check requests and take them as steps of the loop."""
