"""A cluster's login node, reached by the system's OpenSSH: one shared connection, and programs in POSIX shell."""
