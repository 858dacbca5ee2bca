"""Slow, literal versions of what the library computes: dense matrices, quadrature, finite differences.

Nothing here imports the library, so that agreement between the two means something.
"""
