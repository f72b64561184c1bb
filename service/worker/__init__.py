"""The computing side: owns partitions, steps streams on a device, commits."""
