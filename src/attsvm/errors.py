"""The errors that attsvm raises on purpose."""


class AttsvmError(ValueError):
    """Wrong input: one sentence that names the field, what was expected and what came."""
