"""What `--output json` prints, and the Python API returns of it, as types: `scripts/schema` writes docs/schema/ from them."""
