"""The test of the test: bugs planted on purpose, and how many seeds of the simulation it takes to find each."""
