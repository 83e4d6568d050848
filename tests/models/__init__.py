"""Models of tables: plain Python that knows what rows a table must have."""
