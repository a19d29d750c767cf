"""The agent of a machine and the supervisor of an attempt. They decide nothing."""
