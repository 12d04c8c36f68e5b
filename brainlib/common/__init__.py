"""Standard library and torch only: files, errors, logs."""
