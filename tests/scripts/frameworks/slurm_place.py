import os

NAMES = ("PROCID", "LOCALID", "NODEID", "NTASKS", "STEP_NUM_TASKS", "TASKS_PER_NODE", "STEP_TASKS_PER_NODE")
print("place", *(os.environ[f"SLURM_{name}"] for name in NAMES), flush=True)
