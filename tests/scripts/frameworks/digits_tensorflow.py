"""MultiWorkerMirroredStrategy in a loop of its own, without Keras."""

import json
import os

import digits
import tensorflow as tf
from model_tensorflow import Model

strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank, size = json.loads(os.environ["TF_CONFIG"])["task"]["index"], strategy.num_replicas_in_sync
with strategy.scope():
    model = Model(aggregation=tf.VariableAggregation.MEAN)


@tf.function
def step(images, numbers):
    def mine(images, numbers):
        gradients = model.gradients(images, numbers)
        model.learn(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradients))

    strategy.run(mine, args=(images, numbers))


images, numbers, *test = digits.load()
for part in digits.batches(len(images), rank, size):
    step(tf.constant(images[part]), tf.constant(numbers[part]))
print(f"rank {rank} of {size}: accuracy {model.accuracy(*test):.4f}", flush=True)
