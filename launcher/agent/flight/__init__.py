"""torch's flight recorder: each rank keeps its last collectives in memory, and writes them to a file after a timeout.

Per node, `recorder.py` switches it on and has it write, and `dumps.py` reads the files. Over all nodes, `analysis.py`
has torch's own analyser find the rank that did not join, and `findings.py` says it. Both read what a worker wrote, so
they run as programs of their own, with limits (`program.py`).
"""
