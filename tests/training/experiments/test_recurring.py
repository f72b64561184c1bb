"""What `alpaca` gains on the switching sinusoid if it remembers regimes."""

from rich.console import Console

from training.experiments import recurring


def test_a_memory_of_tasks_that_recur_forecasts_better():
    model = recurring.random_features(fitted=True)
    without = recurring.sinusoids(model, 0, 4, 0, 2)
    remembered = recurring.sinusoids(model, 8, 4, 0, 2)
    assert (remembered > without).all()
    never = recurring.sinusoids(model, 8, 0, 0, 2) - recurring.sinusoids(model, 0, 0, 0, 2)
    assert (never > -0.02).all()


def test_table_is_printed(capsys):
    recurring.show((0, 2), 0, 2, Console(width=120))
    assert "switching sinusoid" in capsys.readouterr().out
