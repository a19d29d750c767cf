"""The HTTP interface: route table, middleware, OpenAPI, and one handler per endpoint."""
