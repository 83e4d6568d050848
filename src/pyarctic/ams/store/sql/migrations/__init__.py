"""The revisions of the database. Each file of `versions` says how to come from the one before it; none of them is changed
once it is released.
"""
