"""The agent: the program that runs once on every node and starts the workers.

It uses only the standard library and relative imports, and runs on Python 3.9 or newer: it is packed as `agent.pyz` and
shipped with each run.
"""
