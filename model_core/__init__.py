"""MOCA: run-length filtering over Bayesian models that adapt. Pure torch, no clock, no network."""
