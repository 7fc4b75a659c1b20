"""Data sets of the Hugging Face hub, fetched by its own client from a hub on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import threading
import time
import urllib.parse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpfed.data.importers import import_records
from dpfed.data.importers.hub import Address
from dpfed.data.store.records import RecordStore
from dpfed.errors import UserError

hub = pytest.importorskip("huggingface_hub")
Api = hub.HfApi
SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """What the client asks a hub for, answered from a dictionary.

    Attributes:
        files: name -> content of the one data set, ``owner/pictures``.
        gated: nobody is let in.
        asked: paths that were asked for.
        sizes: what it says of files' sizes, where that is not true.
        said: its answer to everything, as of somebody who is no hub.
        silent: seconds before it answers.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}
        self.gated, self.asked = False, []
        self.said: bytes | None = None
        self.silent = 0.0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
                outer.asked.append(path)
                status, headers, content = outer.answer(path)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    with contextlib.suppress(BrokenPipeError):  # whoever asked has gone
                        self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.api = Api(endpoint=f"http://127.0.0.1:{self.server.server_address[1]}", token=False)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        time.sleep(self.silent)
        if self.said is not None:
            return 200, {"Content-Type": "text/html"}, self.said
        if self.gated:
            return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "ask"}, b"{}"
        if path.startswith("/api/datasets/owner/pictures"):
            if not path.endswith(("pictures", SHA, "revision/main")):
                return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
            siblings = [
                {"rfilename": name, "size": self.sizes.get(name, len(content)), "blobId": "0" * 40}
                for name, content in self.files.items()
            ]
            answer = {"id": "owner/pictures", "sha": SHA, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
            return 200, {"Content-Type": "application/json"}, json.dumps(answer).encode()
        name = path.removeprefix(f"/datasets/owner/pictures/resolve/{SHA}/")
        if name in self.files:
            etag = hashlib.sha1(self.files[name], usedforsecurity=False).hexdigest()
            return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": SHA}, self.files[name]
        return 404, {"X-Error-Code": "RepoNotFound" if path.startswith("/api") else "EntryNotFound"}, b"{}"


@pytest.fixture
def there(monkeypatch):
    server = Hub()
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: server.api)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    yield server
    server.server.shutdown()
    server.server.server_close()


def table(pictures, count, label_names=("cat", "dog")) -> bytes:
    """A Parquet file as `datasets` writes it, with its features in the metadata."""
    rows = [{"image": {"bytes": pictures.png(), "path": f"{number}.png"}, "label": number % 2} for number in range(count)]
    features = {"image": {"_type": "Image"}, "label": {"names": list(label_names), "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    out = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows).replace_schema_metadata(metadata), out)
    return out.getvalue().to_pybytes()


def test_a_data_set_is_fetched_from_one_commit_and_imported_like_any_other(there, tmp_path, pictures):
    there.files = {
        "README.md": b"---\nlicense: mit\n---\n",
        "pictures.py": b"raise SystemExit('code was run')",
        "data/train-00000-of-00001.parquet": table(pictures, 4),
        "data/test-00000-of-00001.parquet": table(pictures, 2),
    }
    told: list[str] = []
    report = import_records("hf://owner/pictures", tmp_path / "store", say=told.append)
    store = RecordStore.open(tmp_path / "store")
    assert report.format == "parquet" and report.counts == {"train": 4, "validation": 0, "test": 2}
    assert store.label_names == {"label": ["cat", "dog"]} and store.name == "pictures"
    assert "2 files" in told[0] and SHA in told[0] and "no code is run" in told[0]
    assert not any("pictures.py" in path for path in there.asked)
    assert {path.name for path in tmp_path.iterdir()} == {"store"}


def test_a_folder_and_a_revision_choose_among_several(there, tmp_path, pictures):
    there.files = {"small/train.parquet": table(pictures, 3), "large/train.parquet": table(pictures, 5)}
    with pytest.raises(UserError, match="several data sets"):
        import_records("hf://owner/pictures", tmp_path / "s")
    assert import_records("hf://owner/pictures@main/small", tmp_path / "s").counts["train"] == 3
    with pytest.raises(UserError, match="no revision 'v9'"):
        import_records("hf://owner/pictures@v9", tmp_path / "t")
    with pytest.raises(UserError, match="no files of records below medium"):
        import_records("hf://owner/pictures/medium", tmp_path / "t")


def test_folders_of_images_are_fetched_too(there, tmp_path, pictures):
    there.files = {f"train/{name}/{number}.png": pictures.png() for name in ("a", "b [1]") for number in range(2)}
    import_records("hf://owner/pictures/train", tmp_path / "s")
    assert RecordStore.open(tmp_path / "s").label_names == {"label": ["a", "b [1]"]}


@pytest.mark.parametrize(
    "name", ["../x.parquet", "/etc/x.parquet", "a/../../x.parquet", "a\\..\\..\\x.parquet", "C:x.parquet", "a\nb"]
)
def test_names_that_lead_elsewhere_are_refused_before_anything_is_fetched(there, tmp_path, name):
    there.files = {name: b"x", "train.parquet": b"y"}
    with pytest.raises(UserError, match="leads elsewhere: nothing was fetched"):
        import_records("hf://owner/pictures", tmp_path / "s")
    assert not list(tmp_path.iterdir()) and not any("resolve" in path for path in there.asked)


def test_more_than_the_disk_holds_is_refused_before_anything_is_fetched(there, tmp_path):
    there.files, there.sizes = {"train.parquet": b"x"}, {"train.parquet": 10**16}
    with pytest.raises(UserError, match="10,000,000.0 GB of files"):
        import_records("hf://owner/pictures", tmp_path / "s")
    assert not any("resolve" in path for path in there.asked)


def test_what_is_incomplete_is_refused_and_the_next_attempt_fetches_only_the_rest(there, tmp_path, pictures):
    there.files = {"data/train-0.parquet": table(pictures, 3), "data/train-1.parquet": table(pictures, 3)}
    there.sizes = {"data/train-1.parquet": 10}
    with pytest.raises(UserError):
        import_records("hf://owner/pictures", tmp_path / "s")
    there.sizes.clear()
    there.asked.clear()
    assert import_records("hf://owner/pictures", tmp_path / "s").counts["train"] == 6
    assert {path.name for path in tmp_path.iterdir()} == {"s"}


def test_what_an_older_attempt_left_behind_is_not_imported(there, tmp_path, pictures):
    there.files = {"data/train-0.parquet": table(pictures, 3)}
    old = tmp_path / ".s.hub" / "pictures"
    (old / ".cache").mkdir(parents=True)
    (old / "data").mkdir()
    (old / "data" / "train-9.parquet").write_bytes(table(pictures, 3))
    assert import_records("hf://owner/pictures", tmp_path / "s").counts["train"] == 3


def test_what_the_hub_refuses_is_a_sentence(there, tmp_path):
    with pytest.raises(UserError, match="no such data set, or it is private"):
        import_records("hf://owner/nothing", tmp_path / "s")
    there.gated = True
    with pytest.raises(UserError, match="its owner must let you in first"):
        import_records("hf://owner/pictures", tmp_path / "s")
    there.api = Api(endpoint="http://127.0.0.1:9", token=False)
    with pytest.raises(UserError, match="the hub does not answer"):
        import_records("hf://owner/pictures", tmp_path / "s")


def test_who_is_no_hub_or_falls_silent_is_a_sentence(there, tmp_path, monkeypatch):
    there.said = b"<html>Welcome to our network! Please log in.</html>"
    with pytest.raises(UserError, match="what answers is no hub, but perhaps the login page of a network"):
        import_records("hf://owner/pictures", tmp_path / "s")
    monkeypatch.setattr("dpfed.data.importers.hub._PATIENCE", 0.2)
    there.silent = 1.5
    with pytest.raises(UserError, match="the hub does not answer"):
        import_records("hf://owner/pictures", tmp_path / "s")


def test_a_refusal_speaks_of_the_address_and_says_what_stays(there, tmp_path, pictures):
    there.files = {"data/train.parquet": table(pictures, 2), "data/pool.parquet": table(pictures, 2)}
    with pytest.raises(UserError) as refused:
        import_records("hf://owner/pictures@main", tmp_path / "s")
    said = str(refused.value)
    assert said.startswith("hf://owner/pictures@main/data/pool.parquet belongs to no split; ")
    assert "choose one of its folders or files, as hf://owner/pictures@main/FOLDER" in said
    assert said.count(str(tmp_path)) == 1 and f"What was fetched stays in {tmp_path / '.s.hub'}, for the next" in said


def test_a_table_is_fetched_with_the_images_that_it_names(there, tmp_path, pictures):
    there.files = {f"train/{number}.png": pictures.png() for number in range(3)}
    there.files["train/metadata.csv"] = b"file_name,text\n" + b"".join(b"%d.png,picture %d\n" % (n, n) for n in range(3))
    assert import_records("hf://owner/pictures", tmp_path / "all").kind == "image-text"
    there.files["other/x.png"] = pictures.png()
    report = import_records("hf://owner/pictures/train/metadata.csv", tmp_path / "s", format="table")
    assert report.kind == "image-text" and report.counts["train"] == 3
    assert not (tmp_path / ".s.hub").exists() and not any("other" in path for path in there.asked)


def test_addresses():
    assert Address.parse("hf://a/b") == Address("a/b", None, "")
    assert Address.parse("hf://datasets/a/b@v1.0/c/d/") == Address("a/b", "v1.0", "c/d")
    assert Address.parse("hf://a/b@refs/convert/parquet") == Address("a/b", "refs/convert/parquet", "")
    for text in ("hf://", "hf://a", "hf://a/b/../c", "hf://a/b@", "hf://a b/c", "hf:/a/b"):
        with pytest.raises(UserError, match="no address of a data set"):
            Address.parse(text)


def test_a_place_in_use_is_refused_before_the_hub_is_asked(there, tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "x").write_text("")
    with pytest.raises(UserError):
        import_records("hf://owner/pictures", tmp_path / "s")
    assert not there.asked
