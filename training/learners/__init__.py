"""Trainable models; their parameters are named as the tensors of an artifact."""

from training.learners.alpaca import AlpacaLearner
from training.learners.base import Learner
from training.learners.build import build, learner
from training.learners.classes import Classifier, PcocLearner
from training.learners.lstm import LstmLearner

__all__ = [
    "AlpacaLearner",
    "Classifier",
    "Learner",
    "LstmLearner",
    "PcocLearner",
    "build",
    "learner",
]
