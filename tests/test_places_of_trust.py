"""Each place of the package that opens pickles, removes trees, unpacks or takes names has a reason on the page."""

from __future__ import annotations

import ast

import pytest

from tests import places_of_trust as places


def test_each_place_has_its_reason_on_the_page_and_each_reason_its_place() -> None:
    said, found = places.read_page(places.PAGE.read_text()), places.find_places()
    assert sorted(found - said.keys()) == [], f"say on {places.PAGE} why these may, or go through hocket.stores"
    assert sorted(said.keys() - found) == [], f"{places.PAGE} speaks of places that are gone"
    assert all(len(reason.split()) > 1 for reason in said.values())


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("pickle.loads(blob)", "unpickles"),
        ("cloudpickle.load(file)", "unpickles"),
        ("functools.partial(marshal.loads, allow_code=False)", "unpickles"),
        ("load = pickle.loads", "unpickles"),
        ("return pickle.Unpickler(file)", "unpickles"),
        ("from pickle import loads", "unpickles"),
        ("joblib.load(path)", "unpickles"),
        ("yaml.load(text)", "unpickles"),
        ("torch.load(path)", "unpickles"),
        ("np.load(path, allow_pickle=True)", "unpickles"),
        ("torch.anything(path, weights_only=False)", "unpickles"),
        ("keras.models.load_model(path)", "unpickles"),
        ("load(path, safe_mode=False)", "unpickles"),
        ("pd.read_pickle(path)", "unpickles"),
        ("eval(text)", "unpickles"),
        ("values.decode(data)", "unpickles"),
        ("shutil.rmtree(path)", "removes a tree"),
        ("rmtree(path)", "removes a tree"),
        ("filesystem.delete_dir(path)", "removes a tree"),
        ("archive.extractall(path)", "unpacks"),
        ("tar.extract(member)", "unpacks"),
        ("shutil.unpack_archive(path)", "unpacks"),
        ("archive.namelist()", "takes names"),
        ("names.join(folder, name)", "takes names"),
    ],
)
def test_a_new_place_is_seen(line: str, kind: str) -> None:
    assert (kind, "f") in list(places.find_in(ast.parse(f"def f():\n    {line}\n")))


@pytest.mark.parametrize(
    "line", ["json.loads(text)", "model.eval()", "np.load(path, allow_pickle=False)", "os.path.join(a)"]
)
def test_what_opens_nothing_is_left_alone(line: str) -> None:
    assert list(places.find_in(ast.parse(f"def f():\n    {line}\n"))) == []
