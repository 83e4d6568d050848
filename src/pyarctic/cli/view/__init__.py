"""What the command line prints: tables, pages, progress, and the same as JSON."""
