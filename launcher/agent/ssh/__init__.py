"""A host that is reached over SSH, as the launcher asks it."""
