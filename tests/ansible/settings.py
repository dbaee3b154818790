"""Settings and an inventory of Ansible that tests write."""

from __future__ import annotations

CONFIG = """[defaults]
inventory = hosts.ini
timeout = 7
host_key_checking = no
[ssh_connection]
ssh_args = -o Compression=yes
"""

HOSTS = """
n10
n9 distlaunch_workers=3
n2
last distlaunch_rank=1.5
first distlaunch_rank=-1
"""
