"""Predictive distributions of single hypotheses: the families that mixtures are made of.

Parameters are (B, M, ...): stream, mixture component, output dimension. Everything is in the units
of the labels.
"""

from model_core.components.averages import Blend, Choice, Either
from model_core.components.base import Components, average, join
from model_core.components.discrete import Bernoulli, Categorical, NegativeBinomial
from model_core.components.positive import Lomax, Positive, PositiveFunctions
from model_core.components.real import MultivariateStudentT, Normal, SkewedT, StudentT
