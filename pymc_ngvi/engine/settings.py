"""The tuning constants of the automatic engine, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """What the engine was tuned with; the defaults serve every model.

    The names follow the parts of the engine: sizes of sets of draws, steps, secants, when a level
    has settled, averaging, and the search over starts.
    """

    # Sizes of sets of draws.

    #: Draws of the warm-up and of the first level: few, as progress there is large against their
    #: noise. In fewer dimensions than these a few more, as fewer components share their noise.
    few_draws: int = 8
    few_dimensions: int = 5
    few_draws_in_few_dimensions: int = 16
    #: Draws, at least, where the curvature comes from gradients; and up to so many, twice the
    #: fewest that a family can use, so that `core.designs` can balance their fourth moments.
    stein_draws: int = 64
    balanced_draws: int = 256
    #: A level on fewer draws that does not settle says nothing of the posterior: it may not have a
    #: solution where the posterior has one.
    telling_draws: int = 64
    #: No level takes more draws: beyond this, averaging is cheaper than iterating.
    most_draws: int = 8192
    #: A level takes at least twice, and at most eight times the Hessians and 32 times the draws of
    #: the level before: the plan rests on a rough estimate of the noise.
    least_growth: int = 2
    most_growth: int = 8
    most_growth_of_gradients: int = 32
    #: Planned draws are this much more than the noise asks for, so that one plan mostly suffices.
    plan_margin: float = 1.1
    #: Part of the squared error that planned Hessians leave, at least and at most; the rest is for
    #: gradients, which cost less.
    hessian_shares: tuple[float, float] = (0.25, 0.75)
    #: Price of a Hessian in gradients: so much per dimension, and at most. Sparse ones cost less.
    price_per_dimension: float = 0.1
    most_dear: float = 10.0
    #: Steps of a level, at least, where Hessians differ much between draws: until as many secants
    #: are known, a slow iteration may be taken for one that has settled.
    least_steps: int = 8
    #: Of these no more than so many where the squared residual is then less than this part of the
    #: noise, or of what is allowed: a direction in which nine tenths are left by each step would
    #: still have more of the noise of new draws in it.
    least_steps_closing_in: int = 2
    closed: float = 0.005
    #: A level evaluates its draws at least three times: at the start, after one step, and to see
    #: what is left after it.
    evaluations_per_level: int = 3
    #: In more dimensions factorised families take no Newton steps: a whole Hessian has d^2 numbers.
    most_coupled: int = 100

    # Steps on common draws.

    #: Shortest step of the warm-up, where the first curvature may be wrong by many powers of ten.
    shortest_warm_up_step: float = 2.0**-40
    #: Most steps by the curvature at the mean alone, and the shortest of them: where a shorter one
    #: would be needed, the curvature at a point misleads.
    most_newton_steps: int = 40
    shortest_newton_step: float = 2.0**-3
    #: The same where more than this part of the nats that one asked for is left after it, if that
    #: was no more than a long step.
    newton_progress: float = 0.5
    #: Shortest step of a level, where a shorter one would only follow the noise.
    shortest_step: float = 2.0**-4
    #: Longest step of a level, in nats: this much, or `longest_step_per_dimension` times d.
    longest_step: float = 1.0
    longest_step_per_dimension: float = 0.5
    #: The warm-up is near the optimum when a step gains less than this, in nats per dimension.
    least_gain: float = 0.01
    #: A start at which the target is not finite has its precision multiplied by this, so often.
    narrowing: float = 4.0
    most_narrowings: int = 40
    #: Falls of the ELBO that are relatively smaller than this are rounding.
    rounding: float = 1e-12

    # Secants.

    #: Number of secants kept: older ones belong to another part of the parameter space.
    n_secants: int = 5
    #: Eigenvalues of the secants' Gram matrix below this part of the largest are rounding.
    smallest_eigenvalue: float = 1e-10

    # Leaders, the components on which many others depend.

    #: In fewer dimensions none are looked for: what follows a leader is then far from Gaussian, and
    #: more draws cost little.
    least_led: int = 30
    #: Most of them: each costs a few Hessians and a derivative of the covariance.
    most_leaders: int = 6
    #: They are looked for among components whose squared error is so many times the median.
    noise_of_leaders: float = 9.0
    #: Part of its curvature that a component must lose to others that follow it: steps by S close
    #: in by as much. Where that is fast, secants do better, which know nothing of leaders.
    least_following: float = 0.5
    #: The same of a component that is known to be connected with many others.
    least_following_of_hubs: float = 0.25
    #: They are looked for where a step leaves more than this part of the nats it was to remove.
    slow: float = 0.2
    #: A smaller part of its curvature that is left counts as this much.
    least_ratio: float = 0.005
    #: Standard deviations after which they are measured again, and from which on the precision
    #: follows a step.
    far_from_leaders: float = 0.5
    long_way_of_leaders: float = 0.3

    # When a level has settled, and when the fit has converged.

    #: Part of the squared error allowed that may be left to go: a fifth of the accuracy.
    negligible: float = 0.04
    #: Part of the noise of the draws that may be left to go.
    excused: float = 0.3
    #: At most this much noise, in nats per dimension, counts for `excused`.
    largest_noise: float = 0.1
    #: Nine errors in ten are to be within the accuracy: 0.95 on either side.
    confidence: float = 0.95
    #: Degrees of freedom that the mean over all components lends to each component's error.
    shared_freedom: int = 8
    #: Levels in a row without a step that helps after which the fit has stalled.
    most_stuck: int = 2

    # Flat directions.

    #: Curvature of the target, relative to that of q, below which it is flat along a direction.
    flat_curvature: float = 0.05
    #: A step that doubles the variance along a flat direction gains log(2) / 2, in nats. One that
    #: gains less than this does something else.
    flat_gain: float = 0.1
    #: Steps in a row that widen the member along a flat direction, each about twofold, after which
    #: the posterior is not proper. One that is only wide is found in few steps, by its curvature.
    most_widenings: int = 40
    #: The same after a growth of a variance by this factor, in however few steps.
    most_widening: float = 1e40

    # Looking for kinks and jumps of the log density.

    #: Draws among which kinks are looked for, and the first that are evaluated to measure them.
    examined_draws: int = 128
    #: While the answer is open, so many times more draws are evaluated.
    examined_growth: int = 4
    #: Draws in all, before the fit has come near the optimum, and before it is called converged.
    #: The latter are taken whatever the budget: a wrong answer is worse than a late one.
    examined_early: int = 768
    examined_late: int = 5000

    # Averaging fresh draws into a settled level.

    #: Largest standard error, of a mean in posterior standard deviations, with which a level is
    #: near enough to average draws.
    most_displacement: float = 0.3
    #: The same of a log standard deviation, on as many draws as `few_draws`. Where Hessians differ
    #: more, a few draws of a skewed posterior may lack its tail, and agree on what is wrong.
    most_unevenness: float = 0.015
    #: The largest of estimates for so many components is compared with it. Of more components it is
    #: larger by chance alone, and may be.
    judged_components: int = 10
    #: A step is taken for linear if its square is at most this part of the accuracy: what a step
    #: misses is of its second order. After a longer one, fresh draws begin anew.
    linear: float = 0.5
    #: Squared error of the solution, relative to that of one step, below which draws are averaged:
    #: where the iteration closes in slowly, one step with new draws does not reach their solution.
    most_amplification: float = 4.0
    #: New draws at a time, relative to those of the level, at least: fewer would not contradict it.
    least_averaged: float = 0.5
    #: Fresh draws, at most, that have to confirm a level to which none were averaged. They are
    #: taken whatever the budget, and judged by their own noise.
    most_confirming: int = 256
    #: A squared distance more than this many times what noise explains is a surprise.
    surprise: float = 9.0
    #: The same where the step's own secant is not worth an evaluation.
    negligibly_linear: float = 0.05
    #: Surprises, or steps that are not linear, after which averaging gives up.
    most_surprises: int = 1
    most_long_steps: int = 2

    # Search over starts.

    #: Starts tried where a single one ends badly.
    retries: int = 4
    #: Draws on which the ELBOs of starts are compared.
    compared_draws: int = 64
    #: Two fits closer than this, in nats, are the same.
    same_fit: float = 1.0
    #: After the warm-up, two starts further apart than this, in nats, lead to different optima, and
    #: a start this far below the best is poor: this much, or `distinct_per_dimension` times d.
    distinct: float = 3.0
    distinct_per_dimension: float = 0.5


#: The settings used where none are given.
DEFAULTS = Settings()
