"""Profiling: where the time of an update goes, as a trace, a table and a summary; and benchmark runs."""
