"""Two layers in TensorFlow, without Keras."""

import digits
import tensorflow as tf


class Model:
    """The weights, and how they change."""

    def __init__(self, **options):
        self.weights = [tf.Variable(each, **options) for each in digits.weights()]
        self.speed = [tf.Variable(each * 0, **options) for each in digits.weights()]

    def scores(self, images):
        first, bias, second, last = self.weights
        return tf.nn.relu(images @ first + bias) @ second + last

    def gradients(self, images, numbers):
        with tf.GradientTape() as tape:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=numbers, logits=self.scores(images))
            loss = tf.reduce_mean(each)
        return tape.gradient(loss, self.weights)

    def learn(self, gradients):
        for weight, speed, gradient in zip(self.weights, self.speed, gradients, strict=True):
            new = digits.DECAY * speed + gradient
            speed.assign(new)
            weight.assign_sub(digits.RATE * new)

    def accuracy(self, images, numbers):
        return float((self.scores(tf.constant(images)).numpy().argmax(axis=1) == numbers).mean())
