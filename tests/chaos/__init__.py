"""The service and its optimizers killed, stopped and disturbed while others write: `python -m tests.chaos`."""
