"""The program that runs once on every node and starts the workers.

Standard library only, Python 3.9 or newer, relative imports only: it is packed as `agent.pyz` and shipped with each run.
"""
