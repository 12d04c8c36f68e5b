"""Stopping: signals that ask a run to end, the time it is given, and the limit of its training time."""
