"""`/v1/voices`: the voices of the model, and those that are uploaded with the consent of who is heard."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Request, UploadFile

from phonate.serving.errors import ApiError, refuse_unknown_fields
from phonate.serving.server_state import state_of
from phonate.serving.voices import CONSENT, new_voice

router = APIRouter(prefix="/v1/voices")

_FIELDS = ("name", "speaker", "consent", "consent_audio", "reference_audio", "reference_text")


@router.get("")
async def voices(request: Request) -> dict[str, Any]:
    """All voices, and the sentence of consent that an upload needs."""
    state = state_of(request)
    store = state.voices
    stored = [] if store is None else await state.in_thread(store.list)
    data = [{"id": name, "object": "voice", "uploaded": False} for name in state.service.voices]
    data += [{"id": one.name, "object": "voice", "uploaded": True, "created": one.created} for one in stored]
    return {
        "object": "list",
        "data": data,
        "uploads": state.service.needs_reference and store is not None,
        "consent": CONSENT,
    }


@router.post("", status_code=201)
async def add_voice(
    request: Request,
    name: Annotated[str, Form()],
    speaker: Annotated[str, Form(max_length=200)],
    consent: Annotated[str, Form(max_length=1000)],
    reference_audio: Annotated[UploadFile, File()],
    consent_audio: Annotated[UploadFile, File()],
    reference_text: Annotated[str | None, Form()] = None,
) -> dict[str, Any]:
    """Store a voice: its name, a recording with its text, and the consent of `speaker`, as a sentence and spoken."""
    await refuse_unknown_fields(request, _FIELDS)
    state = state_of(request)
    store = state.require_voices()
    voice = new_voice(name, reference_text, speaker, consent)
    if voice.name in state.service.voices:
        raise ApiError(400, f"the model has a voice {voice.name!r}; choose another name", param="name")
    reference = await state.reference(await reference_audio.read(), reference_text)
    spoken = await state.reference(await consent_audio.read(), None, "consent_audio")
    await state.in_thread(lambda: store.add(voice, reference, (spoken.waveform, spoken.sample_rate)))
    return {"id": voice.name, "object": "voice", "uploaded": True, "created": voice.created}


@router.delete("/{name}")
async def remove_voice(request: Request, name: str) -> dict[str, Any]:
    """Delete an uploaded voice and its recordings."""
    state = state_of(request)
    store = state.require_voices()
    if not await state.in_thread(lambda: store.remove(name)):
        raise ApiError(404, f"there is no uploaded voice {name[:100]!r}", param="name", code="voice_not_found")
    return {"id": name, "object": "voice", "deleted": True}
