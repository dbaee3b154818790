"""The files that a run's workers write: where they are, and how a launcher reads them."""
