"""A seeded campaign against model files, tables and requests; it counts what must never happen.

    python tests/attacks.py files 2000
    python tests/attacks.py tables 2000
    python tests/attacks.py requests 2000

Every model file is changed behind its checksum, as an attacker would. If it loads, it predicts, draws, is
fitted again, and answers in the explorer. Tables go through the commands. One line of JSON comes out.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import faulthandler
import gc
import hashlib
import io
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from forgery import closed, npy, opened, parts, sealed, with_regressor

LIMIT = 10.0  # seconds of the processor that a case may take, however busy the machine is
MEMORY = 3 << 30  # bytes of addresses beyond those at the start
EXTREMES = [
    None, True, False, 0, 1, -1, 2, 7, 1.5, 1e-9, -1e-9, 1e308, -1e308, float("nan"), float("inf"), 10**8,
    2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64, 10**30, "", "x", "auto", "\x1b[31m", "\ud800", "../../etc", [],
    {}, [[]], [0], [None], {"a": 1}, "9" * 5000,
]  # fmt: skip


# --- what is watched --------------------------------------------------------------------------------------


class Slow(BaseException):
    """A case takes longer than it may; not an Exception, so that nothing catches it."""


class Watch:
    """Counts what must not happen, case by case."""

    def __init__(self, jail: Path) -> None:
        self.jail, self.out = jail, jail / "out"
        self.counts: Counter[str] = Counter()
        self.examples: list[str] = []
        self._places: Counter[tuple[str, str]] = Counter()
        self.slowest, self.before = 0.0, 0
        self._case = ""
        self._watching, self._refitting, self._start = False, False, time.process_time()
        sys.addaudithook(self._notice)
        signal.signal(signal.SIGPROF, self._stop)

    def start(self) -> None:
        """Whatever is imported late has been imported by now: note the memory in use."""
        self.slowest = 0.0
        self.counts.clear()
        self.examples.clear()
        self.before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    def __call__(self, case: str, act) -> None:
        """Run one case: ``act`` counts outcomes itself, and whatever it lets through is a failure."""
        self._case, self._watching = case, True
        self._refitting, self._start = False, time.process_time()
        signal.setitimer(signal.ITIMER_PROF, LIMIT)
        # Seconds of the clock: if it waits, or compiled code never returns.
        faulthandler.dump_traceback_later(60 * LIMIT, exit=True)
        try:
            act()
        except Slow:
            pass  # counted below
        except BaseException as error:
            self.fail("raw", error)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            faulthandler.cancel_dump_traceback_later()
            self._watching = False
        self._judge_time()
        self.counts["cases"] += 1
        if self.counts["cases"] % 20 == 0:
            gc.collect()  # applications refer to themselves, and have threads

    def begin_refit(self) -> None:
        """A refit may take as long as its settings say; after 5 seconds it must end as after Ctrl-C."""
        self._judge_time()
        self._refitting, self._start = True, time.process_time()
        signal.setitimer(signal.ITIMER_PROF, LIMIT / 2, LIMIT / 2)

    def _judge_time(self) -> None:
        seconds = time.process_time() - self._start
        self.slowest = max(self.slowest, seconds)
        if seconds > LIMIT:
            self.fail("hang", f"{seconds:.1f} s")

    def fail(self, kind: str, what: object) -> None:
        """Count a failure and keep its place."""
        self.counts[kind] += 1
        where = ""
        if isinstance(what, BaseException):
            if os.environ.get("LOCALW2_TRACEBACK"):
                traceback.print_exception(what)
            frames = traceback.extract_tb(what.__traceback__)[-3:]
            where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
        self._places[kind, where] += 1
        if self._places[kind, where] <= 3:
            self.examples.append(f"{kind}: {self._case}: {type(what).__name__}: {str(what)[:300]} [{where}]")

    def allow(self, act):
        """The result of ``act``, or None if it says in words why there is none."""
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return act()
        except KeyboardInterrupt:  # a refit before its first epoch
            return None
        except (ValueError, FloatingPointError) as error:
            if len(str(error)) > 2000 or not str(error):
                self.fail("message", error)
            return None

    def _stop(self, *_: object) -> None:
        if self._refitting:
            self._refitting = False
            self.counts["interrupted"] += 1
            raise KeyboardInterrupt
        faulthandler.dump_traceback(sys.stderr)
        raise Slow

    def _notice(self, event: str, args: tuple) -> None:
        if not self._watching:
            return
        if event == "open":
            path, _, flags = args
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            paths = [path] if writes and isinstance(path, str | bytes | os.PathLike) else []
        elif event in ("os.rename", "os.link", "os.symlink"):
            paths = args[:2]
        elif event in ("os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.chown"):
            paths = args[:1]
        else:
            if event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "pickle.find_class"):
                self.fail("run", f"{event} {args!r}")
            return
        for path in paths:
            if isinstance(path, int):
                continue
            target = os.path.abspath(os.fsdecode(path))
            if not target.startswith((str(self.out), "/dev/")):
                self.fail("written", f"{event} {target}")

    def report(self, **more: object) -> dict[str, object]:
        """The figures."""
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 - self.before
        known = dict.fromkeys(("interrupted", "cases", "raw", "hang", "message", "written", "run"), 0)
        return {
            **(known | self.counts),
            "slowest_s": round(self.slowest, 2),
            "more_mb": memory,
            **more,
            "examples": self.examples[:40],
        }


# --- mutations of plain data ------------------------------------------------------------------------------


def list_places(value, path=()):
    """The places of all values in JSON, leaves and containers."""
    found = [path] if path else []
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            found += list_places(item, (*path, key))
    return found


def change_plain(value, rng):
    """JSON with one place changed: an extreme value, a near value, a missing or a repeated part."""
    value = copy.deepcopy(value)
    places = list_places(value)
    if not places:
        return EXTREMES[rng.integers(len(EXTREMES))]
    *path, last = places[rng.integers(len(places))]
    parent = value
    for key in path:
        parent = parent[key]
    old, way = parent[last], rng.random()
    if way < 0.15:
        del parent[last]
    elif way < 0.25 and isinstance(parent, list):
        parent += parent[: 1 + int(rng.integers(3))]
    elif way < 0.35:
        other = places[rng.integers(len(places))]
        found = value
        with contextlib.suppress(KeyError, IndexError, TypeError):
            for key in other:
                found = found[key]
            parent[last] = copy.deepcopy(found)
    elif way < 0.6 and type(old) in (int, float):
        near = [old + 1, old - 1, 2 * old, -old, old / 2, old * 1e6, float(old), str(old)]
        parent[last] = near[rng.integers(len(near))]
    else:
        parent[last] = copy.deepcopy(EXTREMES[rng.integers(len(EXTREMES))])
    return value


def change_array(array, rng):
    """An array with a few elements or bytes changed, or cut, or of another type."""
    array = np.array(array, order="C")
    way = rng.random()
    if array.size and way < 0.4:
        raw = array.reshape(-1).view(np.uint8)
        for _ in range(rng.integers(1, 9)):
            raw[rng.integers(len(raw))] = rng.choice([0, 1, 127, 128, 255, rng.integers(256)])
    elif array.size and way < 0.75 and array.dtype.names is None and array.dtype.kind in "fiu":
        values = [np.nan, np.inf, -np.inf, 1e308, -1e308, 0.0, -1.0, 1e-300, 2.0**31 - 1]
        if array.dtype.kind != "f":
            info = np.iinfo(array.dtype)
            values = [info.min, info.max, 0, min(1, info.max), info.max // 2]
        flat = array.reshape(-1)
        for _ in range(rng.integers(1, 4)):
            flat[rng.integers(len(flat))] = values[rng.integers(len(values))]
    elif array.ndim and way < 0.85:
        array = array[: rng.integers(len(array) + 1)] if len(array) else array
    elif array.ndim and way < 0.92 and len(array):
        array = np.concatenate([array, array[: 1 + rng.integers(len(array))]])
    elif array.ndim > 1:
        array = np.ascontiguousarray(array.T)
    elif array.dtype.kind == "f":
        array = array.astype(np.float32)
    return array


# --- model files ------------------------------------------------------------------------------------------

_TYPES = {"F64": "f8", "F32": "f4", "I64": "i8", "I32": "i4", "I16": "i2", "U8": "u1", "BOOL": "u1"}


def change_settings(data, rng):
    header, content, body = parts(data)
    for _ in range(rng.integers(1, 3)):
        content["settings"] = change_plain(content["settings"], rng)
    return sealed(header, content, body)


def change_tensor(data, rng):
    header, _, body = parts(data)
    names = [name for name in header if not name.startswith("__")]
    if not names:
        return flip(data, rng)
    name = names[rng.integers(len(names))]
    entry = header[name]
    old = np.frombuffer(body[slice(*entry["data_offsets"])], _TYPES[entry["dtype"]])
    new = change_array(old.reshape(entry["shape"]), rng)
    if entry["dtype"] == "BOOL":
        new = new & 1
    if rng.random() < 0.05:
        new = np.empty((10**9, 0), new.dtype)
    kind = {"f8": "F64", "f4": "F32"}.get(new.dtype.str[1:], entry["dtype"])
    return replace_tensor(data, name, new.tobytes(), {"shape": list(new.shape), "dtype": kind})


def replace_tensor(data, name, piece, change):
    """The file with other bytes for one tensor and everything else made to fit."""
    header, content, body = parts(data)
    entries = {key: value for key, value in header.items() if key != "__metadata__"}
    new, joined = {}, b""
    for key, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        own = piece if key == name else body[slice(*entry["data_offsets"])]
        place = {"data_offsets": [len(joined), len(joined) + len(own)]}
        new[key] = entry | (change if key == name else {}) | place
        joined += own
    return sealed(new, content, joined)


def change_regressor(data, rng):
    header, _, body = parts(data)
    names = [name for name in header if name.startswith("__regressor__")]
    if not names:
        return change_tensor(data, rng)
    name = names[rng.integers(len(names))]
    schema, members = opened(body[slice(*header[name]["data_offsets"])])
    for _ in range(rng.integers(1, 3)):
        if members and rng.random() < 0.5:
            which = list(members)[rng.integers(len(members))]
            members[which] = npy(change_array(np.load(io.BytesIO(members[which])), rng))
            continue
        leaves, nodes = [], [schema]
        while nodes:
            node = nodes.pop()
            if isinstance(node, dict):
                if node.get("__loader__") == "JsonNode":
                    leaves.append(node)
                nodes.extend(node.values())
            elif isinstance(node, list):
                nodes.extend(node)
        if leaves and rng.random() < 0.8:
            leaf = leaves[rng.integers(len(leaves))]
            leaf["content"] = json.dumps(EXTREMES[rng.integers(len(EXTREMES))])
        else:
            schema = change_plain(schema, rng)
    return with_regressor(data, closed(schema, members), name)


def exchange(data, rng):
    """Two tensors, or two regressors, under each other's names."""
    header, content, body = parts(data)
    kind = rng.random() < 0.5
    names = [name for name in header if name != "__metadata__" and name.startswith("__") == kind]
    if len(names) < 2:
        return change_settings(data, rng)
    one, other = rng.choice(names, 2, replace=False)
    header[one], header[other] = header[other], header[one]
    return sealed(header, content, body)


def flip(data, rng):
    """Damage without a new checksum."""
    way, at = rng.random(), int(rng.integers(len(data)))
    if way < 0.3:
        return data[:at]
    if way < 0.5:
        return data + rng.bytes(1 + at % 50)
    return data[:at] + bytes([data[at] ^ int(rng.integers(1, 256))]) + data[at + 1 :]


CHANGES = [change_settings, change_settings, change_tensor, change_tensor, change_regressor, exchange, flip]


def decay(t, y, k):
    """The equation of a population."""
    return -k * y


def drift(t, y, k):
    """The drift of a stochastic equation."""
    return -k * y


def diffusion(t, y, s):
    """Its diffusion."""
    return s


def make_models():
    """Small models of every kind, each with rows to fit it again, by name."""
    from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    from localw2 import (
        BallLaw,
        LocalW2FieldRegressor,
        LocalW2MixedRegressor,
        LocalW2ODE,
        LocalW2Regressor,
        LocalW2SDE,
        Nearest,
        Network,
        PushForward,
        RandomCoefficientRegressor,
    )
    from localw2.estimators.dynamics.long_tables import Columns
    from localw2.estimators.regression.polynomial_ridge import PolynomialRidge

    rng, n = np.random.default_rng(0), 40
    x = rng.normal(size=(n, 2))
    y = x[:, 0] + rng.normal(size=n)
    frame = pd.DataFrame({"a": x[:, 0], "c": rng.choice(list("pqr"), n), "b": rng.integers(0, 5, n) / 2})
    frame.loc[3, "a"] = np.nan
    two = np.column_stack([y, x[:, 1] - y])
    kinds = pd.DataFrame({"size": y, "kind": frame["c"], "wet": y > 0})
    curves = np.sin(np.arange(6.0) + y[:, None])
    paths, times = rng.normal(size=(6, 4, 1)).cumsum(1), np.arange(4.0)
    decays, laws = np.exp(-0.3 * times + 0.1 * paths[..., 0])[..., None], {"k": PushForward(0.3, 0.1)}
    walks = 0.1 * rng.normal(size=(6, 20)).cumsum(1)
    steps = pd.DataFrame({"a": rng.normal(size=90), "c": rng.choice(list("pqr"), 90)})
    stairs = 5.0 * (steps["a"] > 0) + (steps["c"] == "q") + 0.1 * rng.normal(size=90)
    balls, tiny = BallLaw(5, 3), Network(width=4, epochs=2)
    noisy = Network.with_noise(2, width=4, epochs=2)
    boosting = HistGradientBoostingRegressor(max_iter=3, min_samples_leaf=5)
    line = make_pipeline(StandardScaler(), PolynomialFeatures(2), Ridge())
    seed = {"random_state": 0}
    fits = {
        "balls": (LocalW2Regressor([balls, BallLaw(3, 3, "outcomes")], line, **seed), x, two),
        "table": (LocalW2Regressor(balls, boosting, bounds=(-9, 9), **seed), frame, y),
        "forest": (LocalW2Regressor(balls, RandomForestRegressor(2, max_depth=3, n_jobs=1), **seed), x, y),
        "trees": (LocalW2Regressor(balls, **seed), steps, stairs),
        "polynomial": (LocalW2Regressor(balls, PolynomialRidge(2), **seed), x, y),
        "network": (LocalW2Regressor(tiny, None, Nearest(10), **seed), x, y),
        "noise": (LocalW2Regressor(noisy, None, Nearest(10), **seed), x, two),
        "plain": (LocalW2Regressor(balls, None, **seed), frame, y),
        "calibrated": (LocalW2Regressor(balls, None, calibrate="cv+", values=(0, 1), **seed), frame, y > 0),
        "coefficients": (RandomCoefficientRegressor("ml", n_bootstrap=3, **seed), x, y),
        "w2": (RandomCoefficientRegressor("w2", n_bootstrap=0, **seed), x, y),
        "mixed": (LocalW2MixedRegressor("balls", None, **seed), frame[["a", "b"]], kinds),
        "classes": (LocalW2MixedRegressor(noisy, **seed), x, kinds["kind"]),
        "fields": (LocalW2FieldRegressor(LocalW2Regressor(balls, None), calibrate=True, **seed), x, curves),
        "ode": (LocalW2ODE(width=4, max_epochs=2, **seed), paths, times),
        "population": (LocalW2ODE(decay, laws, noise="combined", max_epochs=2, **seed), decays, times),
        "process": (LocalW2SDE(jumps="normal", width=4, max_steps=2, **seed), walks, np.arange(20.0)),
        "known process": (LocalW2SDE(drift, diffusion, max_steps=2, **seed), walks, np.arange(20.0)),
    }
    models = {name: (model.fit(*rows), *rows) for name, (model, *rows) in fits.items()}
    models["population"][0].table_columns_ = Columns.of("who", "h", "conc", covariates="kg", y0=[1.0])
    return models


def attack_files(watch, numbers, seed):
    models = make_models()
    path = watch.jail / "in" / "model.localw2"
    goods = {}
    for name, (model, *rows) in models.items():
        model.save(path)
        goods[name] = path.read_bytes()
        use(watch, path, rows, **functions_of(name))
        signal.setitimer(signal.ITIMER_PROF, 0)
    watch.start()
    for number in numbers:
        rng = np.random.default_rng([seed, number])
        name = list(models)[number % len(models)]
        change = CHANGES[rng.integers(len(CHANGES))]
        data = change(goods[name], rng)
        path.write_bytes(data)
        watch(
            f"{number} {name} {change.__name__}",
            lambda name=name: use(watch, path, models[name][1:], **functions_of(name)),
        )
        if path.read_bytes() != data:
            watch.fail("written", "the model file itself")
    return watch.report(refused=watch.counts["refused"], used=watch.counts["used"])


def functions_of(name):
    """The user's own functions that a file asks for."""
    found = {"population": {"field": decay}, "known process": {"drift": drift, "diffusion": diffusion}}
    return found.get(name, {})


def use(watch, path, rows, **functions):
    """Load a file, and do everything that can be done with a model."""
    from localw2 import load

    def read():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return load(path, **functions)
        except ValueError as error:
            if str(path) not in str(error) or len(str(error)) > 2000:
                watch.fail("message", error)
            return None

    model = read()
    if watch.counts["cases"] % 5 == 0:
        command(watch, "info", path)
    if model is None:
        watch.counts["refused"] += 1
        return
    watch.counts["used"] += 1
    kind = type(model).__name__
    if kind == "LocalW2ODE":
        watch.allow(lambda: model.sample(rows[0][:, 0], rows[1], 3, random_state=0))
        if functions:
            watch.allow(lambda: model.summary() and model.individual_parameters(*rows, random_state=0))
    elif kind == "LocalW2SDE":
        for ask in (
            lambda: model.sample(rows[0][:, :1], rows[1], 3, random_state=0),
            lambda: (model.drift(rows[0][:, :1]), model.diffusion(rows[0][:, :1]), model.summary()),
        ):
            watch.allow(ask)
    elif kind == "LocalW2FieldRegressor":
        for ask in (
            lambda: model.predict(rows[0], return_std=True),
            lambda: model.sample(rows[0], 3, random_state=0),
            lambda: model.predict_band(rows[0]),
        ):
            watch.allow(ask)
    elif kind == "LocalW2MixedRegressor":
        for ask in (
            lambda: model.predict(rows[0]),
            lambda: model.predict_proba(rows[0]),
            lambda: model.sample(rows[0], 3, random_state=0),
            lambda: str(model.diagnose(*rows)),
        ):
            watch.allow(ask)
        explore(watch, model, rows)
    else:
        for ask in (
            lambda: model.predict(rows[0], return_std=True),
            lambda: model.sample(rows[0], 3, random_state=0),
            lambda: model.predict_quantiles(rows[0], [0.1, 0.9]),
            lambda: model.predict_interval(rows[0]),
        ):
            watch.allow(ask)
        explore(watch, model, rows)
    watch.begin_refit()
    if watch.allow(lambda: model.fit(*rows)) is not None:
        watch.counts["refitted"] += 1


def explore(watch, model, rows):
    from starlette.testclient import TestClient

    from localw2.apps.explorer import create_app

    app = watch.allow(lambda: create_app(model, *rows))
    if app is None:
        return
    watch.counts["explored"] += 1
    shown = bool(os.environ.get("LOCALW2_TRACEBACK"))
    client = TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=shown)
    about = client.get("/api/model")
    if about.status_code != 200:
        return watch.fail("raw", f"/api/model: {about.status_code}")
    start = [each["start"] for each in about.json()["inputs"]]
    questions = [("distribution", {"x": start}), ("sweep", {"x": start, "input": 0})]
    for question, body in (*questions, ("joint", {"x": start})):
        status = client.post(f"/api/{question}", json=body).status_code
        if status >= 500:
            watch.fail("raw", f"{question}: {status}")
    return None


def command(watch, *words, stdin=None):
    """Run a command in this process; its exit code."""
    from typer.testing import CliRunner

    from localw2.apps.cli import app

    result = CliRunner().invoke(app, list(map(str, words)), input=stdin, prog_name="localw2")
    if isinstance(result.exception, Slow):
        raise result.exception
    if result.exit_code not in (0, 1, 2) or "Traceback" in result.stderr or "bug in localw2" in result.stderr:
        error = result.exception
        watch.fail("raw", f"{words[0]} exits with {result.exit_code}: {result.stderr[-300:]} {error!r}")
    if any(ord(c) < 32 and c not in "\n\t\r" for c in result.stderr):
        watch.fail("message", f"control characters in {result.stderr!r}")
    return result.exit_code


# --- tables -----------------------------------------------------------------------------------------------

CELLS = [
    "", " ", "NA", "nan", "inf", "-inf", "1e400", "1e308", "-1e308", "0", "1,5", "1.234,5", "1_000", "0x10",
    "true", "2020-01-31", "2020-13-45", "31/12/99", "'", '"', '""', "=1+1", "\x00", "\x1b[2J", "\u202e",
    "\ufeff", "é", "漢", "<b>", "$x$", "\n", "\r", ";", "|", "\t", "9" * 400, "x" * 3000, "None", "[1]",
    "p" * 200_000,
]  # fmt: skip


def change_text(text, rng):
    """The text of a table with cells, columns, rows or delimiters changed."""
    rows = [line.split(",") for line in text.splitlines()]
    for _ in range(rng.integers(1, 3)):
        i, way = int(rng.integers(len(rows))), rng.random()
        j = int(rng.integers(max(1, len(rows[i]))))
        cell = CELLS[rng.integers(len(CELLS))]
        if way < 0.45 and rows[i]:
            rows[i][j : j + 1] = [cell]
        elif way < 0.55:
            rows[0][j % len(rows[0]) : j % len(rows[0]) + 1] = [cell]
        elif way < 0.65 and len(rows) > 1:
            del rows[i]
        elif way < 0.72:
            rows.insert(i, rows[i] + [cell])
        elif way < 0.8:
            for row in rows[1:]:
                row[j : j + 1] = [cell]
        elif way < 0.9:
            for row in rows:
                del row[j : j + 1]
        else:
            rows = rows[: int(rng.integers(1, 4))]
        if not rows or not rows[0]:
            rows = [["a"]]
    mark = rng.choice([","] * 12 + [";", "\t", "|", " ", "::"])
    ends = rng.choice(["\n"] * 6 + ["\r\n", "\r"])
    return ends.join(mark.join(row) for row in rows) + ends


def write_mutated(folder, frame, rng):
    """A mutated table in a file of some format; its path."""
    way = rng.random()
    if way < 0.75:
        text = change_text(frame.to_csv(index=False), rng)
        coding = rng.choice(["utf-8"] * 12 + ["utf-8-sig", "utf-16", "utf-16-le", "latin-1", "cp037"])
        data, ending = text.encode(coding, "replace"), rng.choice(["csv", "csv", "tsv", "txt"])
        if rng.random() < 0.1:
            data = flip(data, rng)
    elif way < 0.88:
        stream = io.BytesIO()
        frame.to_parquet(stream)
        data, ending = flip(stream.getvalue(), rng), "parquet"
    else:
        records = json.loads(frame.to_json(orient="records"))
        data = json.dumps(change_plain(records, rng)).encode("utf-8", "replace")
        data, ending = (flip(data, rng) if rng.random() < 0.2 else data), "json"
    path = folder / f"table.{ending}"
    path.write_bytes(data)
    return path


def attack_tables(watch, numbers, seed):
    models = make_models()
    (trained, frame, y), model = models["plain"], watch.jail / "in" / "model.localw2"
    from localw2.apps.cli.model_files import save_model

    save_model(trained, str(model), features=list(frame), targets=["y"])
    mixed = watch.jail / "in" / "mixed.localw2"
    save_model(models["mixed"][0], str(mixed), features=["a", "b"], targets=["y", "c", "w"])
    before = hashlib.sha256(model.read_bytes()).digest()
    table = frame.assign(y=y, w=y > 0, day=pd.date_range("2020-01-01", periods=len(y)).astype(str))
    good = watch.jail / "in" / "good.csv"
    table.to_csv(good, index=False)
    out = watch.out / "result"
    makes = {
        "predict": lambda path: ("predict", model, path, "--out", f"{out}.csv"),
        "sample": lambda path: ("sample", model, path, "-n", 3, "--out", f"{out}.csv"),
        "evaluate": lambda path: ("evaluate", model, path),
        "fit": lambda path: ("fit", path, "--target", "y", "--law", "balls", "--base", "none", "--out", out),
        "network": lambda path: (
            *("fit", path, "--target", "y", "--law", "network", "--base", "ridge", "--epochs", 2),
            *("--delta", "nearest:5", "--hold-out", 0.2, "--out", out),
        ),
        "report": lambda path: ("report", model, path, "--out", f"{out}.html"),
        "classes": lambda path: ("fit", path, "--target", "c,y", "--hold-out", 0.3, "--out", out),
        "predict classes": lambda path: ("predict", mixed, path, "--out", f"{out}.csv"),
        "evaluate classes": lambda path: ("evaluate", mixed, path, "--target", "y,c,w"),
    }
    for make in makes.values():
        if command(watch, *make(good)) != 0:
            watch.fail("raw", f"the good table fails: {make(good)}")
    watch.start()
    kinds = ["predict", "fit", "evaluate", "sample", "network", "classes", "predict classes"]
    kinds += ["predict", "evaluate classes"]
    for number in numbers:
        rng = np.random.default_rng([seed, number])
        path = write_mutated(watch.jail / "in", table, rng)
        data = path.read_bytes()
        kind = "report" if number % 100 == 50 else kinds[number % len(kinds)]
        codes: list[int] = []
        watch(
            f"{number} {kind} {path.suffix}",
            lambda kind=kind, path=path, codes=codes: codes.append(command(watch, *makes[kind](path))),
        )
        watch.counts[f"exit {codes[0] if codes else '?'}"] += 1
        if path.read_bytes() != data or hashlib.sha256(model.read_bytes()).digest() != before:
            watch.fail("written", "an input of the command")
        for made in watch.out.iterdir():
            if not made.name.startswith("result"):
                watch.fail("written", made)
            made.unlink()
        path.unlink()
    return watch.report()


# --- requests ---------------------------------------------------------------------------------------------


def attack_requests(watch, numbers, seed):
    from starlette.testclient import TestClient

    from localw2.apps.explorer import create_app

    models = make_models()
    clients = []
    for name in ("table", "balls", "coefficients", "mixed"):
        model, *rows = models[name]
        app = create_app(model, *rows)
        clients.append(TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False))
    bodies = []
    for client in clients:
        about = client.get("/api/model").json()
        start = [each["start"] for each in about["inputs"]]
        bodies.append(
            {
                "/sample": {"x": [start, start], "n_samples": 3, "random_state": 0},
                "/quantiles": {"x": [start], "q": [0.1, 0.9]},
                "/api/distribution": {"x": start, "k": 5, "shifted": True},
                "/api/sweep": {"x": start, "input": 0},
                "/api/test": {},
            }
        )
        if any(each["classes"] for each in about["outputs"]):
            bodies[-1]["/probabilities"] = {"x": [start, start]}
        if len(about["outputs"]) > 1:
            bodies[-1]["/api/joint"] = {"x": start, "outputs": [0, 1], "k": 5, "shifted": True}
        for path, body in bodies[-1].items():
            if client.post(path, json=body).status_code != 200:
                watch.fail("raw", f"the good request {path} fails")
    headers = [{}, {"host": "evil"}, {"origin": "http://evil"}, {"content-type": "text/plain"}]
    headers += [{"content-length": "-1"}, {"transfer-encoding": "chunked"}, {"cookie": "a=b; " * 200}]

    def ask(number):
        rng = np.random.default_rng([seed, number])
        place = int(rng.integers(len(clients)))
        path = list(bodies[place])[rng.integers(len(bodies[place]))]
        body = bodies[place][path]
        for _ in range(rng.integers(1, 3)):
            body = change_plain(body, rng)
        data = json.dumps(body).encode("utf-8", "replace")
        if rng.random() < 0.15:
            data = flip(data or b"{}", rng)
        if rng.random() < 0.1:
            path = rng.choice(
                ["/../../etc/passwd", "/api/%00", "/explorer.js/..", "/api", "//", "/api/model"]
            )
        method = rng.choice(["POST"] * 40 + ["GET", "PUT", "DELETE", "OPTIONS"])
        extra = {"content-type": "application/json"} | (
            headers[rng.integers(len(headers))] if rng.random() < 0.2 else {}
        )
        answer = clients[place].request(method, path, content=data, headers=extra)
        watch.counts[f"status {answer.status_code}"] += 1
        if answer.status_code >= 500 or "Traceback" in answer.text:
            watch.fail("raw", f"{method} {path} {data[:200]!r}: {answer.status_code}")

    watch.start()
    for number in numbers:
        watch(f"{number}", lambda number=number: ask(number))
    return watch.report()


# --- the command ------------------------------------------------------------------------------------------

ATTACKS = {"files": attack_files, "tables": attack_tables, "requests": attack_requests}


def main() -> None:
    """Run one part of the campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=ATTACKS)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case, to see one again")
    given = parser.parse_args()
    faulthandler.enable()
    sys.dont_write_bytecode = True
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        jail = Path(folder).resolve()
        for name in ("in", "out"):
            (jail / name).mkdir()
        os.chdir(jail / "out")
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))
        start, numbers = time.process_time(), range(given.first, given.first + given.count)
        found = ATTACKS[given.part](Watch(jail), numbers, given.seed)
        os.chdir("/")
    print(json.dumps({"part": given.part, **found, "seconds": round(time.process_time() - start)}))


if __name__ == "__main__":
    main()
