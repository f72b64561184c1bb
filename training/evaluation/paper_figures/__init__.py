"""Figures of the paper's experiments, drawn from trained runs."""

from training.evaluation.paper_figures import images, players, sinusoid

# By experiment; the bandit's are drawn from its regret instead (`bandit.draw`).
DRAW = {
    "sinusoid": sinusoid.draw,
    "players": players.draw,
    "rainbow": images.draw,
    "miniimagenet": images.draw,
}
