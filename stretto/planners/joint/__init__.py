"""Unequal workers as one process: each kind has its own actions, and may leave a query for another kind (ours)."""
