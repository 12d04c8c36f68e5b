"""From what the user hands to ``fit`` to batches at any position of any epoch."""
