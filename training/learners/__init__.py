"""Models while they are being trained: their parameters are named as an artifact's tensors."""

from training.learners.alpaca import AlpacaLearner
from training.learners.base import Learner
from training.learners.build import build
from training.learners.classifier import Classifier
from training.learners.lstm import LstmLearner
from training.learners.pcoc import PcocLearner

__all__ = ["AlpacaLearner", "Classifier", "Learner", "LstmLearner", "PcocLearner", "build"]
