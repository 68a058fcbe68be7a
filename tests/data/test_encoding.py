"""Text files in other encodings than UTF-8, and spreadsheets."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import gradloom as gl
from gradloom.base.errors import DataError, FileError, GradloomError
from gradloom.data import Preprocess, read_features, read_table
from tests.cli.command import run
from tests.refused import refused

CITIES = ["Montréal", "Köln", "Łódź"]
ROWS = 60


def text(names: list[str], end: str = "\n") -> str:
    rows = (f"{names[i % len(names)]},{i % 7}.5,{i % 2}" for i in range(ROWS))
    return end.join(["ville à,x,y", *rows]) + end


def csv(path: Path, encoding: str, names: list[str] = CITIES[:2], end: str = "\n") -> Path:
    path.write_bytes(text(names, end).encode(encoding))
    return path


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "mac-roman", "utf-16-le", "utf-16-be", "utf-32-le", "cp037"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_declared_encoding(tmp_path, encoding, end):
    table = read_table(csv(tmp_path / "t.csv", encoding, end=end), encoding=encoding)
    assert [column.name for column in table.preprocess.columns] == ["ville à", "x"]
    assert table.preprocess.columns[0].categories == ["Köln", "Montréal"]
    same = read_table(csv(tmp_path / "u.csv", "utf-8", end=end))
    np.testing.assert_array_equal(table.train.data, same.train.data)
    again = Preprocess.from_json(table.preprocess.to_json())
    read, plain = read_features(tmp_path / "t.csv", again), read_features(tmp_path / "u.csv", same.preprocess)
    np.testing.assert_array_equal(read[0], plain[0])
    assert json.loads(same.preprocess.to_json()).keys() == json.loads(again.to_json()).keys() - {"encoding"}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("declared", [None, "cp1252"])
def test_a_byte_order_mark_goes_before_the_encoding(tmp_path, encoding, declared):
    table = read_table(csv(tmp_path / "t.csv", encoding, CITIES), encoding=declared)
    assert table.preprocess.columns[0].categories == sorted(CITIES, key=str.encode)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64])
def test_pieces_cut_characters(tmp_path, monkeypatch, size):
    whole = read_table(csv(tmp_path / "t.csv", "utf-16", CITIES))
    monkeypatch.setattr("gradloom.data.reading.text_bytes._PIECE", size)
    cut = read_table(tmp_path / "t.csv")
    assert cut.preprocess == whole.preprocess
    np.testing.assert_array_equal(cut.train.data, whole.train.data)
    csv(tmp_path / "u.csv", "cp1252")
    with pytest.raises(FileError, match=r"u.csv line 1: .*--encoding cp1252"):
        read_table(tmp_path / "u.csv")


def test_the_encoding_of_bytes_that_are_no_utf_8_is_named(tmp_path):
    with pytest.raises(FileError, match=r"t.csv line 1: .*byte 0xe0.*--encoding cp1252 this cell is 'ville à'"):
        read_table(csv(tmp_path / "t.csv", "cp1252"))
    (tmp_path / "u.csv").write_bytes(b"a,y\n" + b"1,x\x81y\n" * 20)  # 0x81 is no character of cp1252
    with pytest.raises(FileError, match=r"u.csv line 2: .*--encoding latin-1"):
        read_table(tmp_path / "u.csv")
    (tmp_path / "v.csv").write_bytes(text(CITIES).encode("utf-16-be"))
    with pytest.raises(FileError, match=r"v.csv: byte 0 is NUL.*encoding utf-16-be"):
        read_table(tmp_path / "v.csv")
    with pytest.raises(FileError, match=r"u.csv line 2: is not cp1252 text \(byte 0x81\)"):
        read_table(tmp_path / "u.csv", encoding="cp1252")
    with pytest.raises(FileError, match=r"is not utf-16"):
        (tmp_path / "w.csv").write_bytes(b"a,y\n" * 20 + b"\x00\xd8\x00")
        read_table(tmp_path / "w.csv", encoding="utf-16-le")


@pytest.mark.parametrize("name", ["nothing", "rot13", "base64", "", "a\0b", "punycode", 3])
def test_encodings_that_are_none(tmp_path, name):
    with refused("encoding", need="a character encoding"):
        read_table(csv(tmp_path / "t.csv", "utf-8"), encoding=name)
    made = json.loads(read_table(tmp_path / "t.csv").preprocess.to_json())
    with pytest.raises(DataError, match="encoding"):
        Preprocess.from_json(json.dumps(made | {"encoding": name}))


def test_an_encoding_without_a_text_file_is_refused(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.arange(60.0).reshape(20, 3), y=np.arange(20) % 2)
    with refused("encoding", "cp1252"):
        read_table(tmp_path / "t.npz", encoding="cp1252")


def test_fit_and_predict(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    csv(Path("t.csv"), "cp1252")
    csv(Path("v.csv"), "cp1252")
    csv(Path("plain.csv"), "utf-8")
    line = ["--epochs", 1, "--hidden", 4, "--ensemble", 1]
    code, _, err = run(capsys, "fit", "t.csv", "--encoding", "Windows-1252", "--test", "v.csv", *line, "--out", "out")
    assert code == 0, err
    assert 'encoding = "cp1252"' in Path("out/settings.toml").read_text()
    model = gl.load("out")
    assert model.preprocess.encoding == "cp1252"
    said = run(capsys, "predict", "out", "t.csv", "--keep", "ville à")
    assert said[0] == 0 and "Montréal" in said[1] and "unknown" not in said[2]
    code, out, _ = run(capsys, "predict", "out", "plain.csv", "--encoding", "utf-8", "--keep", "ville à")
    assert code == 0 and out == said[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = model.predict_proba("t.csv")
        np.testing.assert_array_equal(same, model.predict_proba("plain.csv", encoding="utf-8"))
        np.testing.assert_array_equal(model.predict("t.csv"), model.predict("plain.csv", encoding="utf-8"))
    for words in (["predict", "out", "t.csv"], ["fit", "t.csv"]):
        code, out, err = run(capsys, *words, "--encoding", "nothing")
        assert (code, out) == (2, "") and "--encoding" in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["t.xlsx", "t.xls", "t.ods", "t.csv"])
def test_spreadsheets(tmp_path, capsys, monkeypatch, name):
    """Also under the name of a CSV file, and where rows are predicted or tested on."""
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes((b"\xd0\xcf\x11\xe0" if name.endswith("xls") else b"PK\x03\x04") + bytes(200))
    csv(Path("good.csv"), "utf-8")
    if not Path("out").exists():
        assert run(capsys, "fit", "good.csv", "--epochs", 1, "--hidden", 4, "--ensemble", 1, "--out", "out")[0] == 0
    for words in (["fit", name], ["fit", "good.csv", "--test", name], ["predict", "out", name]):
        code, out, err = run(capsys, *words)
        assert (code, out) == (2, "") and err.count("\n") == 1 and "CSV" in err and "export" in err, err
    with pytest.raises(GradloomError, match="export the sheet as CSV"):
        gl.load("out").predict(name)
