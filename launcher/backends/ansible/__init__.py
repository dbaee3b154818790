"""Run on hosts over SSH, from an Ansible inventory.

$ distlaunch ansible --inventory n1,n2, train.py
$ distlaunch ansible --inventory hosts.ini --limit gpu --spares 1 train.py
"""
