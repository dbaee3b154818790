import os

import jax
from then import then

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize()

import jax.numpy as jnp  # noqa: E402 - after initialize()
from jax.experimental import multihost_utils  # noqa: E402

rank, size = jax.process_index(), jax.process_count()
total = int(multihost_utils.process_allgather(jnp.array([rank + 1])).sum())
print(f"rank {rank} of {size} on {os.uname().nodename}: sum {total}", flush=True)
then(rank, lambda: multihost_utils.sync_global_devices("all"))
