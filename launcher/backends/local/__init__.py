"""Run on this machine; several nodes are simulated, one agent each.

$ distlaunch local train.py --epochs 3
$ distlaunch local --nodes 2 --nproc-per-node 4 train.py
"""
