"""What collectives.py measures, how, and how it is shown. Needs torch and nothing else."""
