"""Google's `generateContent`."""

from __future__ import annotations

import base64
import json
from typing import Any

from langchain_google_genai import ChatGoogleGenerativeAI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from providers.api import Call, FakeAPI, Found, Search, Think, Writer, refuse


class GenerateContent(FakeAPI):
    """`/models/{model}:streamGenerateContent`."""

    def model(self, **options: Any) -> ChatGoogleGenerativeAI:
        known = {"base_url": self.url, "api_key": "x", "model": "gemini-2.5-flash", "max_retries": 1}
        return ChatGoogleGenerativeAI(**{**known, **options})

    def refusal(self, message: str) -> Response:
        error = {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}
        return JSONResponse({"error": error}, 400)

    def is_stream(self, body: Any, request: Request) -> bool:
        return "streamGenerateContent" in request.url.path

    def check(self, body: Any, request: Request) -> None:
        contents = body["contents"]
        refuse(not contents, "GenerateContentRequest.contents: contents is not specified")
        refuse(
            contents[0].get("role") != "user",
            "Please ensure that multiturn requests alternate between user and model, beginning with user.",
        )
        calls = 0
        for place, content in enumerate(contents):
            parts = content.get("parts") or []
            refuse(
                not parts,
                f"GenerateContentRequest.contents[{place}].parts: contents.parts must not be empty.",
            )
            for part in parts:
                refuse(
                    not any(part.get(key) for key in part.keys() - {"thought", "thoughtSignature"}),
                    f"GenerateContentRequest.contents[{place}].parts: must have one initialized field",
                )
            answers = sum("functionResponse" in part for part in parts)
            refuse(
                calls != answers,
                "Please ensure that the number of function response parts is equal to the number of function "
                "call parts of the function call turn.",
            )
            calls = sum("functionCall" in part for part in parts)
        refuse(calls, "Please ensure that function call turn is followed by a function response turn.")
        refuse(
            contents[-1]["role"] != "user",
            "Please ensure that multiturn requests end with a user role or a function response.",
        )

    def writer(self, body: Any) -> Writer:
        return _Parts()


class _Parts(Writer):
    def __init__(self) -> None:
        self._written = 0

    def _data(self, parts: list[dict[str, Any]], finish: str | None = None) -> bytes:
        self._written += 1 + len(str(parts)) // 8
        candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
        if finish:
            candidate["finishReason"] = finish
        usage = {"promptTokenCount": 11, "candidatesTokenCount": self._written}
        usage["totalTokenCount"] = 11 + self._written
        data = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-flash"}
        return f"data: {json.dumps({**data, 'responseId': 'r1'})}\r\n\r\n".encode()

    def write(self, part: Any) -> list[bytes]:
        if isinstance(part, str):
            return [self._data([{"text": part}])]
        if isinstance(part, Think):
            thought: dict[str, Any] = {"text": part.text, "thought": True}
            if not part.cut:
                thought["thoughtSignature"] = base64.b64encode(part.id.encode()).decode()
            return [self._data([thought])]
        if isinstance(part, Search):
            return [self._data([{"executableCode": {"language": "PYTHON", "code": part.query}}])]
        if isinstance(part, Found):
            return [self._data([{"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}}])]
        assert isinstance(part, Call)
        return [self._data([{"functionCall": {"name": part.name, "args": json.loads(part.args)}}])]

    def end(self) -> list[bytes]:
        return [self._data([{"text": ""}], "STOP")]
