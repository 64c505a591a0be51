"""KServe v2 with Triton's own clients, HTTP and gRPC, unchanged."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import tritonclient.grpc as tgrpc
import tritonclient.grpc.aio as tgrpc_aio

from facefleet import Engine
from facefleet.types import EncodedImage
from tests.server.conftest import Running

thttp = pytest.importorskip("tritonclient.http", reason="needs tritonclient[http]")


@pytest.fixture(scope="module", params=["http", "grpc"])
def triton(request: pytest.FixtureRequest, server: Running) -> tuple[object, object]:
    """The module of a protocol, and a client of it."""
    if request.param == "http":
        with thttp.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            yield thttp, client
    else:
        with tgrpc.InferenceServerClient(f"127.0.0.1:{server.serving.grpc_port}") as client:
            yield tgrpc, client


def pictures(module: object, *data: bytes) -> object:
    entry = module.InferInput("image", [len(data), 1], "BYTES")
    tensor = np.empty((len(data), 1), object)
    tensor[:, 0] = data
    entry.set_data_from_numpy(tensor)
    return entry


def metadata(module: object, client: object, name: str) -> dict[str, object]:
    return client.get_model_metadata(name) if module is thttp else client.get_model_metadata(name, as_json=True)


def test_health_and_metadata(triton: tuple[object, object]) -> None:
    module, client = triton
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("face_pipeline")
    for name in ("face_pipeline", "face_detector", "face_embedder"):
        tree = metadata(module, client, name)
        assert tree["name"] == name
        assert len(tree["inputs"]) == 1
    with pytest.raises(Exception, match="no model"):
        metadata(module, client, "nobody")


def test_face_pipeline(
    triton: tuple[object, object], engine: Engine, astronaut_jpeg: bytes, no_face_jpeg: bytes
) -> None:
    module, client = triton
    result = client.infer("face_pipeline", [pictures(module, astronaut_jpeg, no_face_jpeg, b"broken")])
    assert result.as_numpy("num_faces").tolist() == [[1], [0], [-1]]
    assert [text.decode() for text in result.as_numpy("status")[:, 0]] == ["ok", "no_face", "unsupported_format"]
    expected = engine.analyze(EncodedImage(astronaut_jpeg, "x"))
    np.testing.assert_array_equal(result.as_numpy("embeddings")[0, 0], expected.embeddings[0])
    np.testing.assert_array_equal(result.as_numpy("boxes")[0, 0], expected.boxes[0])
    assert np.isnan(result.as_numpy("boxes")[1]).all(), "padding"


def test_face_detector(triton: tuple[object, object], engine: Engine, astronaut: np.ndarray) -> None:
    module, client = triton
    entry = module.InferInput("image", [1, *astronaut.shape], "UINT8")
    entry.set_data_from_numpy(astronaut[None])
    wanted = [module.InferRequestedOutput("boxes"), module.InferRequestedOutput("landmarks")]
    result = client.infer("face_detector", [entry], outputs=wanted)
    expected = engine.analyze(astronaut)
    np.testing.assert_array_equal(result.as_numpy("boxes")[0], expected.boxes)
    np.testing.assert_array_equal(result.as_numpy("landmarks")[0], expected.landmarks)
    assert result.as_numpy("scores") is None


def test_face_embedder(triton: tuple[object, object], engine: Engine, astronaut: np.ndarray) -> None:
    module, client = triton
    expected = engine.analyze(astronaut, chips=True)
    entry = module.InferInput("faces", [2, 112, 112, 3], "UINT8")
    entry.set_data_from_numpy(np.concatenate([expected.chips, expected.chips]))
    result = client.infer("face_embedder", [entry])
    for row in result.as_numpy("embeddings"):
        np.testing.assert_array_equal(row, expected.embeddings[0])
    np.testing.assert_allclose(result.as_numpy("norms")[:, 0], expected.norms[0])
    wrong = module.InferInput("faces", [1, 64, 64, 3], "UINT8")
    wrong.set_data_from_numpy(np.zeros((1, 64, 64, 3), np.uint8))
    with pytest.raises(Exception, match="faces takes UINT8"):
        client.infer("face_embedder", [wrong])


def test_statistics_count(triton: tuple[object, object], no_face_jpeg: bytes) -> None:
    module, client = triton

    def count() -> int:
        options = {} if module is thttp else {"as_json": True}
        (stats,) = client.get_inference_statistics("face_pipeline", **options)["model_stats"]
        return int(stats.get("inference_count", 0))

    before = count()
    client.infer("face_pipeline", [pictures(module, no_face_jpeg, no_face_jpeg)])
    assert count() == before + 2


def test_a_lone_failure_is_the_requests(triton: tuple[object, object]) -> None:
    module, client = triton
    with pytest.raises(Exception, match="format"):
        client.infer("face_pipeline", [pictures(module, b"broken")])


def test_json_tensors(server: Running, astronaut_jpeg: bytes) -> None:
    import base64

    import httpx

    data = [{"b64": base64.b64encode(astronaut_jpeg).decode()}]
    body = {"id": "7", "inputs": [{"name": "image", "shape": [1, 1], "datatype": "BYTES", "data": data}]}
    tree = httpx.post(f"{server.url}/v2/models/face_pipeline/infer", json=body).json()
    outputs = {each["name"]: each["data"] for each in tree["outputs"]}
    assert tree["id"] == "7"
    assert outputs["num_faces"] == [1]
    assert outputs["status"] == ["ok"]


def test_grpc_deadline_and_stream(server: Running, astronaut_jpeg: bytes) -> None:
    async def main() -> None:
        async with tgrpc_aio.InferenceServerClient(f"127.0.0.1:{server.serving.grpc_port}") as client:
            with pytest.raises(Exception, match=r"(?i)deadline"):
                await client.infer("face_pipeline", [pictures(tgrpc, astronaut_jpeg)], client_timeout=1e-6)

            async def requests() -> object:
                for _ in range(3):
                    yield {"model_name": "face_pipeline", "inputs": [pictures(tgrpc, astronaut_jpeg)]}

            found = [result async for result, error in client.stream_infer(requests()) if error is None]
            assert [int(result.as_numpy("num_faces")[0, 0]) for result in found] == [1, 1, 1]

    asyncio.run(main())
