"""Selvedge for Python: order between changes of files, and checkers of crash states."""

from . import checker
from .patchgroup import Mount, Patchgroup

__all__ = ["Mount", "Patchgroup", "checker"]
