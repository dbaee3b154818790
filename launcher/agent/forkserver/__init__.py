"""The fork server: imports torch once per node, forks the workers, and becomes them."""
