"""Clusters, who appears together, tables of faces, and contact sheets."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from facefleet.decode import Decoder
from facefleet.errors import ConfigError, ExchangeError, GalleryWriteError, PipelineMismatchError
from facefleet.gallery import Gallery
from facefleet.gallery.clustering import NOISE, cluster_faces, together
from facefleet.gallery.contact_sheet import Tile, cut_face, write_sheet
from facefleet.gallery.enrol import enrol_table
from facefleet.gallery.face_table import read_face_table
from facefleet.sinks import ParquetTable
from tests.conftest import skip_without
from tests.unit.gallery.fake import DIMENSION, IDENTITY, unit_vectors
from tests.unit.jobs.fake import faces_of


@pytest.fixture
def _scikit() -> None:
    if importlib.util.find_spec("sklearn") is None:
        skip_without("sklearn", "scikit-learn is not installed")


def people(sizes: list[int], noise: float) -> tuple[np.ndarray, np.ndarray]:
    truth = np.repeat(np.arange(len(sizes)), sizes)
    vectors = unit_vectors(len(sizes), 128, seed=1)[truth] + noise * unit_vectors(len(truth), 128, seed=2)
    order = np.random.default_rng(0).permutation(len(truth))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)[order], truth[order]


@pytest.mark.usefixtures("_scikit")
class TestClusters:
    @pytest.mark.parametrize("method", ["components", "hdbscan"])
    def test_people_are_told_apart(self, method: str) -> None:
        vectors, truth = people([30, 20, 10, 5], 0.5)
        labels = cluster_faces(vectors, method=method, neighbors=40)  # type: ignore[arg-type]
        assert labels.tolist() == truth.tolist(), "largest first"

    def test_strangers_are_no_cluster(self) -> None:
        vectors, truth = people([10, 10, 1, 1, 1], 0.5)
        labels = cluster_faces(vectors)
        assert set(labels[truth >= 2].tolist()) == {NOISE}
        assert cluster_faces(vectors, min_size=1).max() == 4
        assert cluster_faces(vectors, threshold=0.999).max() == NOISE

    def test_few(self) -> None:
        assert len(cluster_faces(np.empty((0, 8), np.float32))) == 0
        for method in ("components", "hdbscan"):
            assert cluster_faces(unit_vectors(1), method=method, min_size=1).tolist() == [0]  # type: ignore[arg-type]

    def test_refused(self) -> None:
        for options in ({"method": "kmeans"}, {"min_size": 0}, {"neighbors": 0}, {"threshold": 3.0}):
            with pytest.raises(ConfigError):
                cluster_faces(unit_vectors(3), **options)  # type: ignore[arg-type]


def test_together() -> None:
    inputs = ["a", "a", "a", "b", "b", "c", "c", "c"]
    labels = np.array([0, 1, NOISE, 0, 1, 1, 2, 2])
    assert together(inputs, labels) == [(0, 1, 2), (1, 2, 1)]


class TestTables:
    def write(self, path: Path, count: int = 12, fingerprint: str = "f" * 64) -> None:
        table = ParquetTable(16, {"fingerprint": fingerprint})
        table.write_part(
            path, [(f"dir{i % 3}/{i}.jpg", faces_of(f"{i}", b"%d" % i, count=i % 3)) for i in range(count)]
        )

    def test_of_a_job(self, tmp_path: Path) -> None:
        self.write(tmp_path / "f.parquet")
        table = read_face_table(tmp_path / "f.parquet")
        assert table.fingerprint == "f" * 64
        assert 0 < len(table) <= 12
        assert table.embeddings.shape == (len(table), 16)
        np.testing.assert_allclose(np.linalg.norm(table.embeddings, axis=1), 1, atol=1e-5)
        assert table.people is None
        assert np.isfinite(table.boxes).all()

    def test_any_with_embeddings(self, tmp_path: Path) -> None:
        columns = {"embedding": unit_vectors(3, 4).tolist(), "person": ["a", "b", "a"]}
        pq.write_table(pa.table(columns), tmp_path / "f.parquet")
        table = read_face_table(tmp_path / "f.parquet")
        assert table.people == ["a", "b", "a"]
        assert np.isnan(table.boxes).all()

    def test_refused(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
        (tmp_path / "t.parquet").write_text("text")
        for name in ("x.parquet", "t.parquet", "nothing.parquet"):
            with pytest.raises(ExchangeError):
                read_face_table(tmp_path / name)

    def test_enrolled(self, tmp_path: Path) -> None:
        metadata = {b"facefleet.fingerprint": IDENTITY.fingerprint.encode()}
        columns = {
            "input": ["p/1.jpg", "p/2.jpg", "p/2.jpg", "q/3.jpg", "q/4.jpg"],
            "embedding": unit_vectors(5).tolist(),
            "x1": [0.0] * 5,
            "y1": [0.0] * 5,
            "x2": [90.0, 90, 80, 90, 5],
            "y2": [90.0, 90, 80, 90, 5],
            "size_px": [90.0, 90, 80, 90, 5],
        }
        pq.write_table(pa.table(columns).replace_schema_metadata(metadata), tmp_path / "f.parquet")
        table = read_face_table(tmp_path / "f.parquet")
        with Gallery.create(tmp_path / "g", IDENTITY) as gallery:
            found = list(enrol_table(gallery, table, lambda row: Path(table.inputs[row]).parent.name))
            assert {result.key: bool(result.sample) for result in found} == {
                "p/1.jpg": True,
                "p/2.jpg": False,
                "q/3.jpg": True,
                "q/4.jpg": False,
            }
            assert all(result.reasons for result in found if not result.sample)
            again = list(enrol_table(gallery, table, lambda row: "p", face="largest"))
            assert sum(bool(result.sample) for result in again) == 2, "one is there already, one is too small"
        self.write(tmp_path / "other.parquet")
        table = read_face_table(tmp_path / "other.parquet")
        with Gallery.create(tmp_path / "h", IDENTITY) as other, pytest.raises(PipelineMismatchError):
            list(enrol_table(other, table, lambda row: "x"))


class TestSheets:
    def test_faces_are_where_they_belong(self, tmp_path: Path) -> None:
        red, blue = np.full((112, 112, 3), (255, 0, 0), np.uint8), np.full((112, 112, 3), (0, 0, 255), np.uint8)
        write_sheet(
            tmp_path / "s.png", [[Tile(red, "one"), Tile(None, "h\u00e4?" * 20)], [Tile(blue, "two", marked=True)]]
        )
        sheet = cv2.imread(str(tmp_path / "s.png"))[:, :, ::-1]
        assert sheet[60, 60].tolist() == [255, 0, 0]
        assert sheet[60, 180].tolist() == [200, 200, 200]
        assert sheet[200, 60].tolist() == [0, 0, 255]

    def test_long_rows_go_on(self, tmp_path: Path) -> None:
        write_sheet(tmp_path / "s.png", [[Tile(None, str(i)) for i in range(30)]])
        height, width = cv2.imread(str(tmp_path / "s.png")).shape[:2]
        assert width < 1500
        assert height > 3 * 112
        write_sheet(tmp_path / "empty.png", [])

    def test_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("")
        with pytest.raises(GalleryWriteError):
            write_sheet(tmp_path / "f" / "s.png", [[Tile(None, "x")]])

    def test_cut(self, astronaut: np.ndarray) -> None:
        box = np.array([180, 70, 270, 190], np.float32)
        face = cut_face(Decoder(), astronaut, box, None)
        assert face is not None
        assert face.shape == (112, 112, 3)
        assert cut_face(Decoder(), "/nowhere.jpg", box, None) is None
        assert cut_face(Decoder(), astronaut, np.full(4, np.nan, np.float32), None) is None


assert DIMENSION == 32
