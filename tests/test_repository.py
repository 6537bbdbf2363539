"""Checks of the repository itself: what it says of itself, and the tools that hold its rules."""

import importlib.metadata
import importlib.util
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import hocket
from hocket.cli import main

ROOT = Path(__file__).parents[1]


def test_the_version_is_the_same_everywhere():
    assert hocket.__version__ == importlib.metadata.version("hocket")


def test_importing_hocket_brings_no_framework():
    program = """
import sys
import tomllib
import hocket
print(*sorted({"torch", "tensorflow", "jax", "ray", "pyarrow", "pyspark", "sklearn", "matplotlib"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chain_and_tree", "counter_actor"])
def test_example_runs(name, tmp_path):
    program = ROOT / "examples" / f"{name}.py"
    command = [sys.executable, "-W", "error", str(program), "--delay", "0.01"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert {"chain_and_tree": "tree    36", "counter_actor": "primes below 3000: 430, counted in the actor: 430"}[
        name
    ] in done.stdout


@pytest.mark.slow
def test_the_training_example_runs(tmp_path):
    program = ROOT / "examples" / "train_convnet.py"
    command = [sys.executable, str(program), "--num-epochs", "2", "--storage-path", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("trained 2 epochs: accuracy")
    assert lines[1].startswith("the checkpoint's model, on all pictures: accuracy")
    assert len(list((tmp_path / "convnet").glob("checkpoint_*"))) == 2


@pytest.mark.slow
def test_the_flax_example_runs(tmp_path):
    program = ROOT / "examples" / "train_flax.py"
    command = [sys.executable, str(program), "--num-epochs", "2", "--storage-path", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("trained 2 epochs: accuracy 0.")
    assert lines[1] == "the checkpoint has 4810 parameters"


@pytest.mark.slow
@pytest.mark.long
def test_graphs_beside_single_steps(tmp_path):
    """The program itself compares the losses of both ways. Only JAX's side: torch's compiler takes half a minute."""
    program = ROOT / "examples" / "graph_and_eager.py"
    command = [sys.executable, str(program), "--steps", "5", "--only", "JAX", "--png", str(tmp_path / "chart.png")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split()[:2] == ["JAX", "jax.jit"]
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.long
def test_the_example_of_meshes_learns_the_same_on_each(tmp_path):
    program = ROOT / "examples" / "mesh_digits.py"
    told = []
    for axes in (["batch=8"], ["batch=2", "model=4"]):
        command = [sys.executable, str(program), "--mesh", *axes, "--epochs", "2", "--folder", str(tmp_path / axes[-1])]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        *epochs, same = done.stdout.splitlines()
        assert same.endswith("on one device: bit for bit the same")
        assert (tmp_path / axes[-1] / "curves.png").read_bytes().startswith(b"\x89PNG")
        told.append([float(word.rstrip(",;")) for line in epochs for word in line.split() if "." in word])
    # Of each epoch losses and accuracies by turns. Sums in another order may turn one picture around.
    picture = 1 / 384 + 0.001  # of the tested ones, printed with three digits
    assert told[0][::2] == pytest.approx(told[1][::2], abs=2e-3)
    assert told[0][1::2] == pytest.approx(told[1][1::2], abs=picture)
    assert told[0][-1] > 0.9


def run_sharded_digits(framework, layout, folder):
    """Return the loss and accuracy of each epoch, how much of the weights a rank had, and the first layer's sum."""
    program = ROOT / "examples" / "sharded_digits.py"
    command = [sys.executable, str(program), "--framework", framework, "--layout", layout, "--epochs", "2"]
    done = subprocess.run([*command, "--folder", str(folder)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert layout == "one" or (folder / "weights" / "manifest.json").exists()
    told = [float(word.rstrip(",;")) for word in done.stdout.split() if "." in word]
    return told[:4], told[4], told[5]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("framework", ["torch", "jax", "keras"])
def test_sharded_training_learns_as_one_process(framework, tmp_path):
    expected, _, _ = run_sharded_digits(framework, "one", tmp_path)
    for layout, part in {"fully": 0.5, "2x2": 0.503}.items():
        curves, kept, _ = run_sharded_digits(framework, layout, tmp_path)
        assert curves == pytest.approx(expected, abs=2e-3), layout
        assert kept == pytest.approx(part, abs=1e-3)
    assert expected[3] > 0.9


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_transformer_learns_the_same_with_each_layout(tmp_path):
    program = ROOT / "examples" / "mesh_transformer.py"
    command = [sys.executable, str(program), "--blocks", "1", "--steps", "30", "--folder", str(tmp_path), "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    told = [line.replace(",", "").split() for line in done.stdout.splitlines()]
    assert [words[0] for words in told] == ["one:", "data:", "fsdp:", "tensor:", "2x2:"]
    for words in told:
        first, last = float(words[2]), float(words[4].rstrip(";"))
        assert last < first - 1
        assert float(words[words.index("most") + 1]) <= 1e-5, words
    held = [int(words[words.index("has") + 1]) for words in told]
    assert held[0] == held[1] == 4 * held[2] > held[4] > held[3] > held[2]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_example_of_datasets_runs(tmp_path):
    program = ROOT / "examples" / "train_on_dataset.py"
    command = [sys.executable, str(program), "--num-epochs", "12", "--storage-path", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    # each worker prints it, at the same time: the ends of their lines may come later
    told = "128 pictures, 274 parameters"
    assert done.stdout.count(told) == 2
    configured, loader, dataset = [line for line in done.stdout.splitlines() if line and told not in line]
    assert configured == "configured with {'lr': 0.01, 'num_epochs': 12}"
    assert loader.startswith("trained on a loader: loss 0.")
    assert dataset.startswith("trained on a dataset: slope ")
    assert 1.8 < float(dataset.split()[5].rstrip(",")) < 2.2
    assert dataset.endswith("100 rows in each worker")
    assert len(list((tmp_path / "unique_run_name").glob("checkpoint_*"))) == 12


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kind", ["grid", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("optuna", "asha", "population"))]
)
def test_the_example_of_searches_runs(kind, tmp_path):
    program = ROOT / "examples" / "search_digits.py"
    command = [sys.executable, str(program), kind, "--plot", "curves.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    *shown, best = done.stdout.splitlines()
    assert best.startswith('best {"')
    assert float(shown[0].split()[0]) > 0.5
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["strategies", "keras", "jax", "boosters"])
def test_the_example_of_searches_over_frameworks_runs(kind, tmp_path):
    program = ROOT / "examples" / "search_frameworks.py"
    environment = os.environ | {"KERAS_BACKEND": "torch"}
    done = subprocess.run(
        [sys.executable, str(program), kind], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    best = done.stdout.splitlines()[-1]
    assert best.startswith("best ")
    assert float(best.split()[1]) > 0.8


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "options", "lines"),
    [
        ("keras_mnist_2022", ["--epochs", "2", "--steps-per-epoch", "3"], ["rank 0: {'loss': [", "rank 1: {'loss': ["]),
        pytest.param(
            "keras_graph_and_eager",
            ["--steps", "5", "--rounds", "1"],
            ["eager ", "tf.function ", "the graph is "],
            marks=pytest.mark.long,
        ),
        pytest.param(
            "keras_two_models",
            ["--lenet-rows", "256", "--photo-rows", "16", "--epochs", "1", "--chart", "chart.png"],
            [
                "lenet          44,426 parameters  alone",
                "two_classes   420,802 parameters  2 ranks",
                "the chart: chart.png",
            ],
            marks=pytest.mark.long,
        ),
        ("parameter_server_tensorflow", [], ["5 steps of 1 workers: the counter is 15"]),
    ],
)
def test_a_keras_example_runs(name, options, lines, tmp_path):
    pytest.importorskip("tf_keras", reason="needs TensorFlow and tf-keras: pip install 'hocket[tensorflow]'")
    program = ROOT / "examples" / f"{name}.py"
    environment = {**os.environ, "HOME": str(tmp_path), "KERAS_BACKEND": "tensorflow"}
    command = [sys.executable, str(program), *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert [line for line in lines if line not in done.stdout] == []
    assert name != "keras_two_models" or (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_packages_that_name_what_is_not_there_are_found(tmp_path, capsys):
    check_rooms = runpy.run_path(str(ROOT / "tools" / "check_rooms.py"))["main"]
    package = tmp_path / "kitchen"
    (package / "oven").mkdir(parents=True)
    (package / "table.py").touch()
    (package / "__init__.py").write_text('"""`table`, `oven` and `cook`, with ``fire``."""\n\nfrom os import cook\n')
    assert check_rooms(tmp_path) == 0
    (package / "table.py").rename(package / "bench.py")
    assert check_rooms(tmp_path) == 1
    assert "kitchen/__init__.py:1: `table` is no module here" in capsys.readouterr().out


def test_what_is_hard_to_hold_in_mind_is_found(tmp_path, capsys):
    check_house = runpy.run_path(str(ROOT / "tools" / "check_house.py"))["main"]
    package = tmp_path / "kitchen"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "oven.py").write_text("class Oven:\n" + "    x = 1\n" * 300)
    assert check_house(package) == 0
    (package / "table.py").write_text(
        'from kitchen.oven import Oven\n\n\nclass Table(Oven):\n    """What is laid."""\n' + "    y = 1\n" * 300
    )
    (package / "drawer").mkdir()
    for number in range(30):
        (package / "drawer" / f"knife_{number}.py").touch()
    assert check_house(package) == 1
    found = capsys.readouterr().out.splitlines()
    assert [line.partition(" has ")[2].partition(" ")[0] for line in found[:2]] == ["603", "30"]
    assert "table.py:5: 'What'" in found[2]


def test_local_imports_of_our_own_are_found(tmp_path, capsys):
    check_imports = runpy.run_path(str(ROOT / "tools" / "check_imports.py"))["main"]
    package = tmp_path / "hocket"
    package.mkdir()
    (package / "fine.py").write_text("import hocket.core\n\n\ndef f():\n    import torch\n")
    assert check_imports(tmp_path) == 0
    (package / "bad.py").write_text(
        "def f():\n    from hocket import core\n    async def g():\n        from . import h\n"
    )
    assert check_imports(tmp_path) == 1
    assert [line.partition(" is ")[0].split(":")[1:] for line in capsys.readouterr().out.splitlines()] == [
        ["2", " hocket"],
        ["4", " ."],
    ]


@pytest.fixture
def run_docs():
    return runpy.run_path(str(ROOT / "tools" / "run_docs.py"), run_name="run_docs")


def test_blocks_of_a_page_are_one_script_on_the_lines_of_the_page(tmp_path, run_docs):
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n```python\nx = 1\n```\n```sh\nrm x\n```\n<!-- why -->\n```python no-run\n1 / 0\n```\n```python\ny = "
        "x\n```\n"
    )
    parsed = run_docs["parse_page"](page)
    assert (parsed.blocks, parsed.skipped) == (2, 1)
    assert [(number, line) for number, line in enumerate(parsed.script.splitlines(), 1) if line] == [
        (3, "x = 1"),
        (13, "y = x"),
    ]
    assert run_docs["run_page"](page, parsed, limit_seconds=30)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python no-run\nx\n```\n", "page.md:1: a no-run block needs the reason"),
        ("```python norun\nx\n```\n", "a block says `python`, `python no-run` or a title"),
    ],
)
def test_a_block_that_does_not_run_says_why(tmp_path, run_docs, text, message):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match=message):
        run_docs["parse_page"](page)


def test_a_page_that_fails_or_hangs_is_reported(tmp_path, run_docs, capsys):
    page = tmp_path / "page.md"
    page.write_text("\n```python\n1 / 0\n```\n")
    assert not run_docs["run_page"](page, run_docs["parse_page"](page), limit_seconds=30)
    assert "line 3" in capsys.readouterr().out
    page.write_text("```python\nimport threading\nthreading.Event().wait()\n```\n")
    assert not run_docs["run_page"](page, run_docs["parse_page"](page), limit_seconds=0.2)
    assert "still running when the page's time was over" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("shown", "unseen"),
    [
        ("one", None),
        ("two\n```\n```text\nthree 3.0", None),
        ("one\n...\nthree ...", None),
        ("three ...\n...\nlast", None),
        ("three 4.0", 5),
        ("thr", 5),
        ("three 3.0\n```\n```text\none", 8),
    ],
)
def test_output_that_is_shown_has_been_seen(tmp_path, run_docs, capsys, shown, unseen):
    page = tmp_path / "page.md"
    page.write_text(f"""```python
print("one", "two", "three 3.0", "last", sep="\\n")
```
```text
{shown}
```
""")
    assert run_docs["run_page"](page, run_docs["parse_page"](page), limit_seconds=30) == (unseen is None)
    if unseen is not None:
        assert f"page.md:{unseen}: the page does not write this" in capsys.readouterr().out


def test_commands_that_must_fail(tmp_path, run_docs, capsys):
    page = tmp_path / "page.md"
    page.write_text("```console fails\n$ false\n```\n")
    assert run_docs["run_page"](page, run_docs["parse_page"](page), limit_seconds=30)
    page.write_text("```console fails\n$ true\n```\n")
    assert not run_docs["run_page"](page, run_docs["parse_page"](page), limit_seconds=30)
    assert "true: does not fail" in capsys.readouterr().out


def load_tool(name):
    return runpy.run_path(str(ROOT / "tools" / f"{name}.py"))


def test_pages_that_are_too_old_are_found(tmp_path, monkeypatch):
    tool = load_tool("ages")
    monkeypatch.setitem(tool["judge"].__globals__, "MOST_COMMITS", 2)

    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.org"]
        done = subprocess.run(["git", *identity, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "--quiet")
    git("commit", "--quiet", "--allow-empty", "-m", "first")
    page = tmp_path / "parity.md"
    page.write_text(f"from the results of commit\n`{git('rev-parse', '--short=12', 'HEAD')}` with Python")
    told = []
    for _ in range(4):
        told.append(tool["judge"](page))
        git("commit", "--quiet", "--allow-empty", "-m", "another")
    assert [may_be for _, may_be in told] == [True, True, True, False]
    assert re.fullmatch(
        r"parity.md is of commit \w{12}, 3 commits ago; the most is 2. Make it again: make parity.", told[-1][0]
    )
    page.write_text("from commit `0123456789ab`")
    assert tool["judge"](page) == ("parity.md is of commit 0123456789ab: it is no commit of this repository.", False)
    page.write_text("from somewhere")
    assert tool["judge"](page)[0].endswith("does not say from which commit it was made. Write: commit `0123abcd`.")


def test_generated_pages_say_from_which_commit():
    tool = load_tool("ages")
    assert [page.name for page in tool["PAGES"] if not tool["MADE_FROM"].search(page.read_text())] == []


def test_the_readmes_table_is_made_of_rows_that_benchmarks_have(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    tool = runpy.run_path(str(ROOT / "benchmarks" / "readme.py"))
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    assert [line.row for line in tool["LINES"] if f"| {line.row} |" not in results] == []
    assert {line.command.split()[0] for line in tool["LINES"]} <= {
        file.name for file in (ROOT / "benchmarks").iterdir()
    }
    page = tmp_path / "README.md"
    page.write_text((ROOT / "README.md").read_text())
    tool["write"](page, "a table")
    assert f"{tool['BEGIN']}\n\na table\n\n{tool['END']}" in page.read_text()
    assert tool["read_median"]("5,012 (4,900 to 5,100)", " ms") == "5.01 ms"
    assert tool["read_median"]("0.114 (0.098 to 0.133)", " s") == "0.114 s"
    assert tool["read_median"]("failed", " s") == "failed"


def test_prose_that_has_to_be_read_twice_is_found():
    find = load_tool("prose")["find_faults"]
    page = "It shall run.\n\n```\nit shall run\n```\n\n" + "word " * 30 + "\n| " + "x" * 200 + " |\n`shall`\n"
    assert [(number, fault.split(":")[0].split(";")[0]) for number, fault in find(page)] == [
        (1, "`shall` makes a riddle"),
        (7, "150 columns"),
    ]


def test_docstrings_and_comments_that_have_to_be_read_twice_are_found():
    find = load_tool("prose")["find_python_faults"]
    program = (
        '"""No sentence"""\nclass A:\n    """It is told.\n\n    Shall be.\n    """\n    def run(self):\n        """Run.\n\n'
        '        Args:\n            x: What it is.\n        """\n    a = 1\n    """Whose it is."""\n'
        "    # whoever asks\n    # and what for\n"
        'def run():\n    """Run.\n\n    >>> "Shall run."\n    \'shall\'\n    """\n'
        "    # The same.\n    b = 1  # fine\n    # What for?\n"
    )
    assert [(number, fault.partition(":")[0].split("` opens")[0]) for number, fault in find(program)] == [
        (1, "the first paragraph of the module is no sentence"),
        (3, "`is told` makes a riddle"),
        (3, "`is told` makes a riddle"),
        (3, "`shall` makes a riddle"),
        (8, "`What"),
        (14, "`Whose"),
        (15, "`whoever` makes a riddle"),
        (23, "`The same.` says nothing"),
    ]


def test_pages_are_wrapped_where_they_can_be():
    wrap = load_tool("prose")["wrap"]
    page = (
        f"# {'head ' * 30}\n\n- {'word ' * 30}\n- short\n\n```\n{'code ' * 30}\n```\n| {'cell ' * 30} |\n{'text ' * 30}"
    )
    lines = wrap(page).split("\n")
    assert all(len(line) <= 120 for line in lines if not line.startswith(("#", "code", "|")))
    assert wrap(page).split() == page.split()
    assert wrap("short\n") == "short\n"


def test_files_and_commands_of_a_page_run_in_order(tmp_path, run_docs, capsys):
    page = tmp_path / "page.md"
    page.write_text(
        '```python title="one.py"\nprint(1)\n```\n```console\n$ python one.py > out\n1\n```\n'
        '```python title="one.py"\nprint(2)\n```\n```console\n$ python one.py >> out\n$ cat out\n$ test "$(cat out)" = "1\n2"\n```\n'
    )
    parsed = run_docs["parse_page"](page)
    assert [name for name, _ in parsed.steps] == ["one.py", "$", "one.py", "$", "$", "$"]
    assert not run_docs["run_page"](page, parsed, limit_seconds=30)
    assert "1\n2\n" in capsys.readouterr().out


def test_the_settings_page_names_all_variables():
    page = (ROOT / "docs" / "settings.md").read_text()
    sources = [path for path in (ROOT / "src").rglob("*.py") if "testing" not in path.parts]
    found = {name for path in sources for name in re.findall(r"\bHOCKET_[A-Z_]+\b", path.read_text())}
    assert len(found) > 10
    assert sorted(name for name in found if f"`{name}`" not in page) == []
    assert sorted(set(re.findall(r"HOCKET_[A-Z_]+", page)) - found) == []


def test_the_readme_says_what_is_there():
    """Each feature has its page; nothing that is there is said to be missing, nor the other way round."""
    text = (ROOT / "README.md").read_text()
    features, _, rest = text.partition("## How fast")
    absent = rest.partition("## Not built yet")[2]
    for page in re.findall(r"\]\((docs/[\w/]+\.md)\)", text):
        assert (ROOT / page).exists(), page
    rooms = {"ps", "data", "mesh", "tune", "spark", "train"}
    assert rooms <= set(re.findall(r"docs/(\w+)\.md", features))
    for room in rooms:
        assert importlib.util.find_spec(f"hocket.{room}") is not None
    assert "dashboard" in absent
    assert "`hocket top`" in features
    assert "top" in main.build_parser().format_help().split()
    assert importlib.util.find_spec("hocket.observe") is not None
    assert not any(word in absent for word in ("parameter server", "searches:", "Spark", "collective"))


def test_links_of_the_readme_lead_to_the_repository():
    tool = load_tool("dist")
    page = tool["link"]("[a](docs/a.md) ![p](docs/p.svg) [b](https://x.org) [c](#c)", "https://host/us/hocket", "1.2.0")
    assert page == (
        "[a](https://host/us/hocket/blob/v1.2.0/docs/a.md) ![p](https://host/us/hocket/raw/v1.2.0/docs/p.svg) "
        "[b](https://x.org) [c](#c)"
    )
    linked = tool["link"]((ROOT / "README.md").read_text(), "https://host/us/hocket", "1.2.0")
    assert re.findall(r"\]\((?!https?:|#)", linked) == []
    project = tool["name_urls"]((ROOT / "pyproject.toml").read_text(), "https://host/us/hocket")
    assert tomllib.loads(project)["project"]["urls"]["Source"] == "https://host/us/hocket"


def test_each_extra_is_tried(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    tool = load_tool("try_wheel")
    project = (ROOT / "pyproject.toml").read_text()
    extras = set(tomllib.loads(project)["project"]["optional-dependencies"]) - {"all"}
    assert set(tool["TRIALS"]) - {""} == extras
    assert [name.split("==")[0] for name in tool["list_lowest"](project)] == ["cloudpickle", "numpy", "psutil", "rich"]
    for trial in tool["TRIALS"].values():
        assert all((ROOT / page).exists() for page in trial.pages)
