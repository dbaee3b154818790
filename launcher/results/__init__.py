"""Types of what `--output json` prints and the Python API returns; `scripts/schema` makes docs/schema/ from them."""
