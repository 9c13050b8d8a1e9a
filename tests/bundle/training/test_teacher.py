"""The teacher: averaged weights that are put into the network for a while."""

import math

import pytest
from torch import nn

from bundle.training.teacher import Teacher


def test_a_teacher_is_the_moving_average_of_the_weights() -> None:
    network = nn.Linear(1, 1, bias=False)
    teacher, present = Teacher(network, memory=4.0), Teacher(network)
    network.weight.data.fill_(1.0)  # stage 1 changes the weights after the teacher is made
    for one in (teacher, present):
        one.start()
    decay = math.exp(-1 / 4)
    expected = 1.0
    for value in (3.0, 5.0, -2.0):
        network.weight.data.fill_(value)
        teacher.follow()
        expected = decay * expected + (1 - decay) * value
    with teacher.teaching() as model:
        assert float(model.weight) == pytest.approx(expected)
    assert float(network.weight) == -2.0  # its own again
    with present.teaching() as model:
        assert float(model.weight) == -2.0


def test_the_network_is_as_it_was_afterwards() -> None:
    network = nn.Sequential(nn.Linear(1, 1), nn.Dropout())
    teacher = Teacher(network, memory=1.0)
    teacher.start()
    for training in (True, False):
        network.train(training)
        with teacher.teaching() as model:
            assert not model.training
        assert network.training == training
