"""The mathematics: families, estimators, guards, projections, schedules, algorithm, theory.

Everything here needs NumPy and SciPy only, and works on any log density with derivatives.
"""
