"""What model_core raises.

ModelCoreError
├── CorruptState     bytes that are not a state of this model
└── BadArtifact      a model folder that cannot be loaded
"""


class ModelCoreError(Exception):
    """Base of everything this package raises on purpose."""


class CorruptState(ModelCoreError):
    """Stored bytes are damaged, of an unknown version, or of another model."""


class BadArtifact(ModelCoreError):
    """A model artifact is missing a part, has a wrong shape or a number that is not finite."""
