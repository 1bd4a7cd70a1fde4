"""The site's CA certificate, for people and machines to pin by the fingerprint that they were given."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from corral.domain.errors import Refusal

router = APIRouter()


@router.get("/api/v1/ca.pem", response_class=Response, responses={200: {"content": {"application/x-pem-file": {}}}})
def ca_pem(request: Request) -> Response:
    """The certificate of the site's own CA (PEM). It is public; 404 where the system's trust is used."""
    pem: str | None = getattr(request.app.state, "ca_pem", None)
    if pem is None:
        raise Refusal(
            "NOT_FOUND", "This site has no CA of its own: its certificate is one that systems know, or it has none."
        )
    return Response(pem, media_type="application/x-pem-file")
