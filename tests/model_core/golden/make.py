"""Write the golden states: `python -m tests.model_core.golden.make`, from the repository's root.

Each `NAME.v1.moca` beside this file is a stored state as version 1 of the codec wrote it, after
`BEFORE` observations; `NAME.v1.json` holds the `AFTER` that follow and what the filter must say.
They are written once. Later versions of the code must go on reading them and saying the same, so
do not write them again to make a test pass: add files for a new version of the codec instead.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from model_core import codec
from tests.model_core.cases import EVERY, Case, Step, run, series
from tests.model_core.reference import Series

FOLDER = Path(__file__).parent
BEFORE, AFTER, MAX_HYPOTHESES = 40, 8, 12
LEVELS = [0.05, 0.5, 0.95]


def observations(case: Case) -> Series:
    """Two regimes, some labels missing, some outliers allowed for, uneven times, one hint."""
    steps = BEFORE + AFTER
    labelled = [t % 11 != 5 for t in range(steps)]
    elapsed = [1.0 + 0.5 * (t % 3) for t in range(steps)]
    hint = [0.6 if t == 30 else float("nan") for t in range(steps)]
    told = {"labelled": labelled, "elapsed": elapsed, "changepoint": hint, "outlier_rate": 0.01}
    return series(case, 2020, steps, hazard=0.05, **told)


def inputs_of(after: dict[str, list]) -> Series:
    """Recorded observations; null is nan."""
    arrays = {k: np.array(v, dtype=float) for k, v in after.items()}
    arrays["x"] = arrays["x"].reshape(len(arrays["y"]), -1)
    return Series(**{**arrays, "labelled": arrays["labelled"] > 0})


def answer(step: Step) -> dict[str, object]:
    """What is recorded of a step."""
    mixture, belief = step.info.predictive, step.state.belief
    order = belief.run_length[0].argsort()
    order = order[belief.log_prob[0, order].isfinite()]
    return {
        "log_score": step.info.log_score.item() if step.inputs.labelled.item() else None,
        "changepoint_probability": step.info.changepoint_probability.item(),
        "pruned_mass": step.info.pruned_mass.item(),
        "mean": mixture.mean()[0].tolist(),
        "covariance": mixture.covariance()[0].tolist(),
        "run_length": belief.run_length[0, order].tolist(),
        "probability": belief.log_prob[0, order].exp().tolist(),
        "previous_start": belief.previous_start[0, order].tolist(),
        "totals": step.state.totals[0].tolist(),
    }


def nulls(value: np.ndarray) -> list:
    """As a list, nan as null."""
    return np.where(np.isnan(value), None, value).tolist()


def main() -> None:
    """Write both files of every model that has none yet."""
    for case in EVERY:
        stem = f"{case.name}.v{codec.VERSION}"
        if (FOLDER / f"{stem}.moca").exists():
            continue
        steps = run(case, [observations(case)], MAX_HYPOTHESES)
        state = steps[BEFORE - 1].state
        (FOLDER / f"{stem}.moca").write_bytes(codec.encode(case.model, state))
        data = observations(case)._asdict()
        after = {k: nulls(v[BEFORE:]) for k, v in data.items()}
        answers = [answer(step) for step in steps[BEFORE:]]
        text = json.dumps({"observations": after, "answers": answers}, indent=1)
        (FOLDER / f"{stem}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
