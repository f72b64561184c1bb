"""What training raises on purpose.

ValueError
└── BadData    data that cannot be used as it is; the message says where and why
"""


class BadData(ValueError):
    """A file, a column, a row or a series that cannot be used; the message names it."""
