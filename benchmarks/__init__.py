"""What PyArctic promises about speed, measured side by side with what users have today.

Every figure is CPU time and peak memory of a process of its own; ratios come from one run on one machine.
"""
