"""Run in pods of a Kubernetes cluster.

$ distlaunch k8s --image pytorch/pytorch --nodes 2 --gpus-per-node 8 train.py
$ distlaunch k8s --image pytorch/pytorch --dry-run=server train.py
"""
