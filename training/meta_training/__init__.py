"""Meta-training: loop, objective, validation, run folders, processes."""
