"""Programs that show PyArctic at work."""
