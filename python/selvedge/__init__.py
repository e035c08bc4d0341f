"""Patchgroups of Selvedge: order between changes of files, without fsync."""

from .patchgroup import Mount, Patchgroup

__all__ = ["Mount", "Patchgroup"]
