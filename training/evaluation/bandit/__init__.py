"""Agents on the switching wheel bandit and their regret."""
