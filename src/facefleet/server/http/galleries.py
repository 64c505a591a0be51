"""REST: galleries, their people, enrolment, and search."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from facefleet.errors import FacefleetError, RequestError
from facefleet.gallery import Person, PipelineIdentity, Sample
from facefleet.gallery.enrol import Choice, EnrolResult, choose_face
from facefleet.server.errors import problem_of
from facefleet.server.galleries import Galleries
from facefleet.server.http import schema
from facefleet.server.http.answers import answer
from facefleet.server.http.bodies import Body, body_of
from facefleet.server.http.callers import Asked, Reader, unless_gone
from facefleet.server.service import Service
from facefleet.server.values import Answer, Ask
from facefleet.types import FaceStatus

router = APIRouter(prefix="/v1", tags=["galleries"], responses=schema.PROBLEMS)
_MAX_JSON_BYTES = 256 << 10
_MAX_ID = 2**63 - 1
GalleryId = Annotated[str, Path(description="From GET /v1/galleries", max_length=64)]
PersonId = Annotated[int, Path(ge=0, le=_MAX_ID)]
Where = Annotated[str | None, Query(description='Only people with this metadata, as JSON: `{"team": "red"}`')]
Threshold = Annotated[float | None, Query(ge=-1, le=1, description="Least cosine; default: the pack's")]


def _parts(request: Request) -> tuple[Service, Galleries]:
    return request.app.state.service, request.app.state.galleries


async def _enroller(caller: Reader) -> None:
    caller.need("enrol")


async def _admin(caller: Reader) -> None:
    caller.need("admin")


@router.get("/galleries", summary="Which galleries there are", response_model=schema.GalleriesAnswer)
async def galleries(request: Request, caller: Reader) -> Response:
    """Those of the server's folder."""
    del caller
    _, found = _parts(request)
    tree = {"galleries": [dataclasses.asdict(each) for each in await found.run(found.all)]}
    return answer(tree, request.headers.get("accept", ""))


@router.post(
    "/galleries",
    summary="Make an empty gallery",
    status_code=201,
    response_model=schema.GalleryAnswer,
    dependencies=[Depends(_enroller)],
    openapi_extra=schema.json_body(
        {"name": {"type": "string"}, "index": {"type": "string"}, "keep_chips": {"type": "boolean"}},
        example={"name": "employees"},
        required=["name"],
    ),
)
async def create(request: Request) -> Response:
    """For the pack that is running; its id is made here."""
    service, found = _parts(request)
    tree = await _json(request)
    name, index, keep = _text(tree, "name"), tree.get("index", "flat"), tree.get("keep_chips", False)
    if name is None or not isinstance(index, str) or not isinstance(keep, bool):
        raise RequestError("a gallery needs a name; index is a text, keep_chips true or false")
    facts = service.info()
    pipeline = PipelineIdentity(facts["fingerprint"], facts["dimension"], facts["threshold"], facts["runtime"])
    made = await found.run(found.create, name, pipeline, index=index, keep_chips=keep)
    return answer(dataclasses.asdict(made), status=201)


@router.get("/galleries/{gallery}", summary="What a gallery is", response_model=schema.GalleryAnswer)
async def show(request: Request, caller: Reader, gallery: GalleryId) -> Response:
    """Its name, size, index, and what made its embeddings."""
    del caller
    _, found = _parts(request)
    return answer(dataclasses.asdict(await found.run(found.facts, gallery)))


@router.delete(
    "/galleries/{gallery}",
    summary="Remove a gallery with everybody in it",
    status_code=204,
    dependencies=[Depends(_admin)],
)
async def delete(request: Request, gallery: GalleryId) -> Response:
    """Needs the scope admin, where keys are in use."""
    _, found = _parts(request)
    await found.run(found.delete, gallery)
    return Response(status_code=204)


@router.get("/galleries/{gallery}/people", summary="Who is in it", response_model=schema.PeopleAnswer)
async def people(
    request: Request,
    caller: Reader,
    gallery: GalleryId,
    where: Where = None,
    offset: Annotated[int, Query(ge=0, le=_MAX_ID)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """By id; `total` counts all that fit `where`."""
    del caller
    _, found = _parts(request)
    total, some = await found.run(found.people, gallery, _where(where), offset, limit)
    return answer({"total": total, "people": [_person(each) for each in some]}, request.headers.get("accept", ""))


@router.post(
    "/galleries/{gallery}/people",
    summary="Enrol somebody",
    response_model=schema.EnrolAnswer,
    dependencies=[Depends(_enroller)],
    openapi_extra=schema.body(
        "image/*", "application/octet-stream", schema={"images": [schema.JPEG_BASE64]}, optional={"name", "metadata"}
    ),
)
async def enrol(
    request: Request,
    caller: Reader,
    ask: Asked,
    gallery: GalleryId,
    name: Annotated[str | None, Query(max_length=1000, description="Made where the name is nobody's")] = None,
    person: Annotated[int | None, Query(ge=0, le=_MAX_ID, description="Somebody known, instead of a name")] = None,
    face: Annotated[Choice, Query(description="Which face of a picture with several")] = "dominant",
) -> Response:
    """One picture or several. Each is answered: stored, or the reasons why not; a picture is stored once a person.

    As JSON, `name`, `person` and `metadata` (for a new person) may be in the body; without pictures somebody is made
    who has no face yet.
    """
    service, found = _parts(request)
    fingerprint = str(service.info()["fingerprint"])
    facts = await found.run(found.facts, gallery)
    async with body_of(request, service.limits, service.room) as body:
        pictures, tree = await _pictures(body)
        who: int | str | None = person if person is not None else _person_of(tree) or name or _text(tree, "name")
        if who is None:
            raise RequestError("whose face is it?", hint="give name= or person=")
        metadata = _metadata(tree)
        if not pictures:
            if isinstance(who, int):
                raise RequestError("there is no picture in the request", hint="send one, or several parts of a form")
            made = await found.run(found.add, gallery, who, metadata, fingerprint)
            return answer({"person": made.id, "results": []}, status=201)
        caller.take(len(pictures))
        asked = replace(ask, chips=facts.keep_chips)
        outcomes = await unless_gone(request, _analyzed(service, pictures, asked))
        results = await found.run(
            found.enrol, gallery, who, pictures, outcomes, fingerprint=fingerprint, metadata=metadata, face=face
        )
    numbers = [each.person for each in results if each.person is not None]
    stored = any(each.sample is not None for each in results)
    tree = {"person": numbers[0] if numbers else None, "results": [_result(each) for each in results]}
    return answer(tree, request.headers.get("accept", ""), status=201 if stored else 200)


@router.get("/galleries/{gallery}/people/{person}", summary="Somebody", response_model=schema.PersonAnswer)
async def show_person(request: Request, caller: Reader, gallery: GalleryId, person: PersonId) -> Response:
    """With their samples, without embeddings."""
    del caller
    _, found = _parts(request)
    who, samples = await found.run(found.person, gallery, person)
    return answer({**_person(who), "faces": [_sample(each) for each in samples]})


@router.patch(
    "/galleries/{gallery}/people/{person}",
    summary="Rename somebody, or replace their metadata",
    response_model=schema.PersonAnswer,
    dependencies=[Depends(_enroller)],
    openapi_extra=schema.json_body(
        {"name": {"type": "string"}, "metadata": {"type": "object"}}, example={"name": "Anna Example"}, required=[]
    ),
)
async def update(request: Request, gallery: GalleryId, person: PersonId) -> Response:
    """What is not named stays."""
    _, found = _parts(request)
    tree = await _json(request)
    return answer(_person(await found.run(found.update, gallery, person, _text(tree, "name"), _metadata(tree))))


@router.delete(
    "/galleries/{gallery}/people/{person}",
    summary="Erase somebody",
    response_model=schema.ErasedAnswer,
    dependencies=[Depends(_enroller)],
)
async def erase(request: Request, gallery: GalleryId, person: PersonId) -> Response:
    """Everywhere, logs and snapshots included; then every file of the gallery is searched for traces."""
    _, found = _parts(request)
    return answer(await found.run(found.erase, gallery, person))


@router.delete(
    "/galleries/{gallery}/people/{person}/faces/{sample}",
    summary="Remove one face of somebody",
    status_code=204,
    dependencies=[Depends(_enroller)],
)
async def remove_sample(request: Request, gallery: GalleryId, person: PersonId, sample: PersonId) -> Response:
    """The person stays."""
    _, found = _parts(request)
    await found.run(found.remove_sample, gallery, person, sample)
    return Response(status_code=204)


@router.post(
    "/galleries/{gallery}/people/{person}/verify",
    summary="Is it really they?",
    response_model=schema.DecisionAnswer,
    openapi_extra=schema.body("image/*", "application/octet-stream", schema={"image": schema.JPEG_BASE64}),
)
async def verify(
    request: Request,
    caller: Reader,
    ask: Asked,
    gallery: GalleryId,
    person: PersonId,
    threshold: Threshold = None,
    face: Annotated[Choice, Query(description="Which face of a picture with several")] = "largest",
) -> Response:
    """Compare a face of the picture with this person's (1:1)."""
    service, found = _parts(request)
    caller.take()
    fingerprint = str(service.info()["fingerprint"])
    async with body_of(request, service.limits, service.room) as body:
        faces = await unless_gone(request, service.analyze(await body.image(), ask))
    chosen, reason = choose_face(faces, face)
    if chosen is None:
        raise RequestError(reason)
    decision = await found.run(found.verify, gallery, person, chosen.embedding, fingerprint, threshold)
    return answer(dataclasses.asdict(decision), request.headers.get("accept", ""))


@router.post(
    "/search",
    summary="Who is on the picture?",
    response_model=schema.SearchAnswer,
    openapi_extra=schema.body("image/*", "application/octet-stream", schema={"image": schema.JPEG_BASE64}),
)
async def search(
    request: Request,
    caller: Reader,
    ask: Asked,
    gallery: Annotated[str, Query(description="From GET /v1/galleries", max_length=64)],
    k: Annotated[int, Query(ge=1, le=1000, description="Most people a face")] = 1,
    threshold: Threshold = None,
    where: Where = None,
) -> Response:
    """For each face the most alike people of a gallery, best first (1:N); none for somebody unknown."""
    service, found = _parts(request)
    caller.take()
    fingerprint, filters = str(service.info()["fingerprint"]), _where(where)
    async with body_of(request, service.limits, service.room) as body:
        faces = await unless_gone(request, service.analyze(await body.image(), ask))
    usable = [face for face in faces if face.status is FaceStatus.OK]
    vectors = [face.embedding for face in usable]
    matches = await found.search(gallery, vectors, fingerprint=fingerprint, k=k, threshold=threshold, where=filters)
    tree = {
        "gallery": gallery,
        "metric": "cosine",
        "faces": [
            {
                "box": [round(float(value), 2) for value in face.box],
                "score": round(face.score, 4),
                "matches": [dataclasses.asdict(match) for match in some],
            }
            for face, some in zip(usable, matches, strict=True)
        ],
    }
    return answer(tree, request.headers.get("accept", ""))


async def _analyzed(service: Service, pictures: list[tuple[str, bytes]], ask: Ask) -> list[Any]:
    async def items() -> Any:  # noqa: ANN401  # an iterator
        for each in pictures:
            yield each

    found: list[Any] = [None] * len(pictures)
    async for each in service.stream(items(), ask):
        if isinstance(each, Answer):
            found[each.index] = each.outcome
    return found


async def _pictures(body: Body) -> tuple[list[tuple[str, bytes]], dict[str, Any]]:
    """The pictures of a body, and the rest of it where it is JSON."""
    if body.type == "application/json":
        tree = await body.json(body.limits.max_body_bytes)
        images = tree.get("images", [])
        if not isinstance(images, list):
            raise RequestError("images is no list of base64 texts")
        body.limits.check_images(len(images))
        return [(str(n), await body.base64(text, f"images[{n}]")) for n, text in enumerate(images)], tree
    if body.type.startswith("multipart/"):
        return [each async for each in body.images()], {}
    return [("image", await body.image())], {}


async def _json(request: Request) -> dict[str, Any]:
    service, _ = _parts(request)
    async with body_of(request, service.limits, service.room) as body:
        body.need("application/json")
        return await body.json(_MAX_JSON_BYTES)


def _text(tree: dict[str, Any], key: str) -> str | None:
    value = tree.get(key)
    if value is not None and not isinstance(value, str):
        raise RequestError(f"{key} is no text")
    return value


def _person_of(tree: dict[str, Any]) -> int | None:
    value = tree.get("person")
    if value is not None and (type(value) is not int or not 0 <= value <= _MAX_ID):
        raise RequestError("person is no id")
    return value


def _metadata(tree: dict[str, Any]) -> dict[str, Any] | None:
    value = tree.get("metadata")
    if value is not None and not isinstance(value, dict):
        raise RequestError("metadata is no object")
    return value


def _where(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        tree = None
    if not isinstance(tree, dict):
        raise RequestError("where is no JSON object", hint='where={"team": "red"}')
    return tree


def _person(person: Person) -> dict[str, Any]:
    return dataclasses.asdict(person)


def _sample(sample: Sample) -> dict[str, Any]:
    return {
        "id": sample.id,
        "source": sample.source,
        "box": sample.box,
        "quality": dict(sample.quality),
        "created_s": sample.created_s,
    }


def _result(result: EnrolResult) -> dict[str, Any]:
    error = result.error
    return {
        "id": result.key.removeprefix("upload:"),
        "sample": result.sample,
        "reasons": list(result.reasons),
        "warnings": list(result.warnings),
        "error": problem_of(error) if isinstance(error, FacefleetError) else None,
    }
