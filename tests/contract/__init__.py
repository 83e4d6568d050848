"""One suite for each port, run against every implementation."""
