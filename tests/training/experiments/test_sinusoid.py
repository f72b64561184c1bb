"""What `alpaca` gains on the switching sinusoid if it remembers regimes."""

from rich.console import Console

from training.experiments import sinusoid


def test_a_memory_of_tasks_that_recur_forecasts_better():
    model = sinusoid.random_features(fitted=True)
    without = sinusoid.recurring_scores(model, 0, 4, 0, 2)
    remembered = sinusoid.recurring_scores(model, 8, 4, 0, 2)
    assert (remembered > without).all()
    never = sinusoid.recurring_scores(model, 8, 0, 0, 2)
    assert (never - sinusoid.recurring_scores(model, 0, 0, 0, 2) > -0.02).all()


def test_table_is_printed(capsys):
    sinusoid.show_recurring((0, 2), 0, 2, Console(width=120))
    assert "switching sinusoid" in capsys.readouterr().out
