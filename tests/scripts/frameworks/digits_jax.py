"""Data-parallel training: each process has its part of a batch, and JAX adds the gradients up."""

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize()

import digits  # noqa: E402 - after initialize()
import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

rank, size = jax.process_index(), jax.process_count()
mesh = Mesh(jax.devices(), ("batch",))
parts, same = (NamedSharding(mesh, PartitionSpec(*names)) for names in (("batch",), ()))


def scores(weights, images):
    hidden = jax.nn.relu(images @ weights[0] + weights[1])
    return hidden @ weights[2] + weights[3]


def loss(weights, images, numbers):
    chances = jax.nn.log_softmax(scores(weights, images))
    return -jnp.take_along_axis(chances, numbers[:, None], axis=1).mean()


@jax.jit
def step(weights, speed, images, numbers):
    gradients = jax.grad(loss)(weights, images, numbers)
    speed = [digits.DECAY * old + new for old, new in zip(speed, gradients, strict=True)]
    return [old - digits.RATE * new for old, new in zip(weights, speed, strict=True)], speed


images, numbers, test_images, test_numbers = digits.load()
weights = [jax.make_array_from_process_local_data(same, each) for each in digits.weights()]
speed = [jax.make_array_from_process_local_data(same, each * 0) for each in digits.weights()]
for mine in digits.batches(len(images), rank, size):
    batch = [jax.make_array_from_process_local_data(parts, each[mine]) for each in (images, numbers)]
    weights, speed = step(weights, speed, *batch)
found = scores([each.addressable_data(0) for each in weights], test_images).argmax(axis=1)
print(f"rank {rank} of {size}: accuracy {(found == test_numbers).mean():.4f}", flush=True)
