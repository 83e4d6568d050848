"""Benchmarks: performance targets of PyArctic, measured side by side with the tools that users have today.

Every figure is the CPU time or peak memory of a separate process; ratios come from one run on one machine.
"""
