import json
import os

import tensorflow as tf
from then import then

strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank, size = json.loads(os.environ["TF_CONFIG"])["task"]["index"], strategy.num_replicas_in_sync


@tf.function
def total():
    def mine():
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(rank + 1.0))

    return strategy.run(mine)


print(f"rank {rank} of {size} on {os.uname().nodename}: sum {int(total())}", flush=True)
then(rank, total)
