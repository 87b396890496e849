"""`POST /generate_speech`: a reference and a text in, a whole WAV file in JSON out."""

from __future__ import annotations

import base64
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Query, Request, Response, UploadFile

from phonate.serving.errors import ApiError, refuse_unknown_fields
from phonate.serving.server_state import marks, state_of
from phonate.training.speech_service import SpeechRequest

router = APIRouter()


@router.post("/generate_speech")
async def generate_speech(
    request: Request,
    response: Response,
    reference_audio: Annotated[UploadFile | None, File()] = None,
    target_text: Annotated[str | None, Form()] = None,
    reference_text: Annotated[str | None, Form()] = None,
    query_target_text: Annotated[str | None, Query(alias="target_text")] = None,
    query_reference_text: Annotated[str | None, Query(alias="reference_text")] = None,
) -> dict[str, Any]:
    """Say `target_text`, a text or SSML, in the voice of `reference_audio`. Texts are fields of the form or of the
    query.

    Returns the speech as a WAV file in base64, `audio`, and its `sample_rate`.
    """
    await refuse_unknown_fields(request, ("reference_audio", "target_text", "reference_text"))
    state = state_of(request)
    text = target_text if target_text is not None else query_target_text
    if text is None:
        raise ApiError(400, "target_text: is missing", param="target_text")
    said = reference_text if reference_text is not None else query_reference_text
    reference = None
    if reference_audio is not None:
        reference = await state.reference(await reference_audio.read(), said)
    elif state.service.needs_reference:
        raise ApiError(400, "reference_audio: is missing; send a recording as a file", param="reference_audio")
    spoken = state.said(text, "target_text")
    wanted = SpeechRequest(spoken.text, reference=reference, ssml=spoken.ssml)
    speech = await state.speaker.speak(request, wanted, "wav", whole=True)
    try:
        file = b"".join([part async for part in speech.parts()])
    finally:
        await speech.close()
    response.headers.update(marks(state.service.sample_rate))
    return {"audio": base64.b64encode(file).decode(), "sample_rate": state.service.sample_rate}
