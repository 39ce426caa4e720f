"""The automatic engine: it chooses step and sample sizes, and stops when the fit is accurate.

Everything here needs NumPy and SciPy only.
"""
