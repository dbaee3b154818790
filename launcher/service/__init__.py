"""Operations on runs: launch, follow, cancel, inspect."""
