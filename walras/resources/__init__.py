"""What the REST API serves, one module a resource: bodies, endpoints, and the client's calls."""
