"""Grids: a folder for each run, named by what makes it differ."""

from pathlib import Path

from training.experiments import catalogue, grid


def test_names_and_settings_of_a_grid():
    cells = list(grid.cells([0.1, 0.02], ["moca", "sw5"], [0.005], [3], {}))
    assert [each.name for each in cells] == [
        "hazard-0.1_moca_rate-0.005_seed-3",
        "hazard-0.1_sw5_rate-0.005_seed-3",
        "hazard-0.02_moca_rate-0.005_seed-3",
        "hazard-0.02_sw5_rate-0.005_seed-3",
    ]
    assert cells[3].settings == {
        "data": {"hazard": 0.02},
        "model": {"hazard": 0.02},
        "objective": {"mode": "sw5"},
        "optimiser": {"learning_rate": 0.005},
        "seed": 3,
    }


def test_what_is_not_given_is_not_in_the_name():
    (alone,) = grid.cells([], [], [], [], {})
    assert alone == grid.Cell("run", {})
    (one,) = grid.cells([], [], [], [7], {"name": "wide", "model": {"features": 64}})
    assert one.name == "seed-7_wide"
    assert one.settings == {"name": "wide", "model": {"features": 64}, "seed": 7}


def test_axes_win_over_common_settings_and_leave_the_rest():
    common = {"optimiser": {"learning_rate": 1.0, "batch": 3}}
    cells = list(grid.cells([], [], [0.1, 0.2], [], common))
    rates = [each.settings["optimiser"] for each in cells]
    assert rates == [{"learning_rate": r, "batch": 3} for r in (0.1, 0.2)]
    assert common == {"optimiser": {"learning_rate": 1.0, "batch": 3}}


def test_every_run_has_a_folder_of_its_own():
    cells = grid.cells([0.1, 0.01, 0.001], ["moca", "toe"], [1e-3, 1e-4], [0, 1], {})
    folders = [grid.folder(Path("runs"), "sinusoid", "paper", each) for each in cells]
    assert len(set(folders)) == 24
    assert all(each.parent == Path("runs/sinusoid/paper") for each in folders)


def test_every_preset_and_variation_is_a_configuration():
    for experiment in catalogue.EXPERIMENTS:
        names = catalogue.presets(experiment)
        found = {name: catalogue.preset(experiment, name) for name in names}
        assert {each.experiment for each in found.values()} == {experiment}
        assert experiment == "regimes" or found["quick"].optimiser != found["paper"].optimiser
    for experiment, questions in grid.ABLATIONS.items():
        for name, asked in questions.items():
            cells = [grid.cell(each) for each in asked.variations]
            assert len({each.name for each in cells}) == len(cells), name
            for each in cells:
                catalogue.preset(experiment, "quick", each.settings)
