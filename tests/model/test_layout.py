"""Whether a fit belongs to a model: told from what is known of both, and in what they differ."""

import pymc as pm
import pytest

from pymc_ngvi.model.layout import Layout, Outline


def layout(**coords) -> Layout:
    with pm.Model(coords=coords) as model:
        pm.HalfNormal("scale")
        pm.Normal("slopes", **({"dims": "group"} if coords else {"shape": 3}))
    return Layout(model, model.initial_point())


def test_a_layout_agrees_with_itself_whatever_is_unknown():
    full = layout().outline
    assert full.names == ("scale_log__", "slopes[0]", "slopes[1]", "slopes[2]")
    static = Outline({"scale_log__": (), "slopes": (None,)})
    for known in (full, static, Outline(full.shapes), Outline(names=full.names), Outline()):
        assert full.differences(known) == ""
        assert known.differences(full) == ""


@pytest.mark.parametrize(
    ("fit", "expected"),
    [
        (Outline({"slopes": (3,)}), "the model adds scale_log__"),
        (Outline({"scale_log__": (), "slopes": (3,), "x": ()}), "the model lacks x"),
        (
            Outline({"scale_log__": (), "slopes": (None, 3)}),
            "slopes has shape (3,) in the model and (None, 3) in the fit",
        ),
        (
            Outline({"slopes": (3,), "scale_log__": ()}),
            "the order of the variables is scale_log__, slopes in the model and slopes, "
            "scale_log__ in the fit",
        ),
        (
            Outline(names=["scale_log__", "slopes[0]", "slopes[1]"]),
            "the model adds slopes[2]",
        ),
        (
            Outline(names=["scale_log__", "slopes[0]", "slopes[1]", "slopes[2]", "slopes[2]"]),
            "the model has 4 components and the fit 5",
        ),
        (
            Outline(names=["scale_log__", "slopes[0]", "slopes[2]", "slopes[1]"]),
            "the model has slopes[1] where the fit has slopes[2]; "
            "the model has slopes[2] where the fit has slopes[1]",
        ),
    ],
)
def test_every_difference_is_told(fit, expected):
    assert layout().outline.differences(fit) == expected


def test_coordinates_are_part_of_the_names():
    labelled = layout(group=["a", "b", "c"]).outline
    told = labelled.differences(layout().outline)
    assert told.startswith("the model has slopes[group=a] where the fit has slopes[0]; ")


def test_the_order_of_the_variables_may_not_matter():
    turned = Outline({"slopes": (3,), "scale_log__": ()})
    assert layout().outline.differences(turned, ordered=False) == ""


def test_of_many_differences_the_first_are_told():
    fit = Outline({f"x{i}": () for i in range(9)})
    told = layout().outline.differences(fit)
    assert told.count("the model lacks") == 5
    assert told.endswith("; and 6 more")
