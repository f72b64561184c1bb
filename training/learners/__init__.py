"""Trainable models; their parameters are named as the tensors of an artifact."""

from training.learners.base import Learner
from training.learners.build import build, learner
from training.learners.kinds import Classifier

__all__ = ["Classifier", "Learner", "build", "learner"]
