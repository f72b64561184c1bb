"""Trainable models; their parameters are named as the tensors of an artifact."""

from training.learners.alpaca import AlpacaLearner
from training.learners.base import Learner
from training.learners.build import build
from training.learners.classifier import Classifier
from training.learners.lstm import LstmLearner
from training.learners.pcoc import PcocLearner

__all__ = ["AlpacaLearner", "Classifier", "Learner", "LstmLearner", "PcocLearner", "build"]
