"""Fork servers that are left standing for the next run: where they are, and how an agent is asked of one."""
