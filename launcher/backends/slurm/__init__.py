"""Run as a Slurm job, from a login node.

$ distlaunch slurm --partition gpu --nodes 4 --gpus-per-node 8 train.py
$ distlaunch slurm --time 12h --detach -m package.train --lr 3e-4
"""
