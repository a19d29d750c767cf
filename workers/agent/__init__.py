"""The agent: it reports to the server, obeys its commands, and starts and follows the supervisors of attempts."""
