"""The figures of each experiment, drawn from its trained runs: `draw(evaluated)` of each module."""
