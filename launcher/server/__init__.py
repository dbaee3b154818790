"""`distlaunch serve`: the pages of all runs, on this machine only (docs/serve.md)."""
