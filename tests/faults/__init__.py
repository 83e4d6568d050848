"""What becomes of a commit when processes, catalogs, networks and disks fail: one of two states, never a third."""
