"""ParameterServerStrategy: the chief gives out the batches, workers learn from them, and weights are on the server."""

import json
import os

import digits
import tensorflow as tf
from model_tensorflow import Model

task = json.loads(os.environ["TF_CONFIG"])["task"]
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if task["type"] != "chief":
    server = tf.distribute.Server(resolver.cluster_spec(), job_name=task["type"], task_index=task["index"])
    print(f"serves as {task['type']} {task['index']}", flush=True)
    server.join()

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    model = Model(aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


@tf.function
def step(images, numbers):
    strategy.run(lambda images, numbers: model.learn(model.gradients(images, numbers)), args=(images, numbers))


images, numbers, *test = digits.load()
for part in digits.batches(len(images), 0, 1):
    coordinator.schedule(step, args=(tf.constant(images[part]), tf.constant(numbers[part])))
    if not part[0] % 4:
        coordinator.join()  # neither worker is far ahead of the other
coordinator.join()
workers = len(resolver.cluster_spec().job_tasks("worker"))
print(f"chief of {workers} workers: accuracy {model.accuracy(*test):.4f}", flush=True)
