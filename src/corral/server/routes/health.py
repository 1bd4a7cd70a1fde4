"""Is the process alive, may it be sent requests, and which release is it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel

from corral import __version__
from corral.store.engine import Database

router = APIRouter()


class Health(BaseModel):
    status: str


class Version(BaseModel):
    release: str


@router.get("/healthz")
def healthz() -> Health:
    """The process answers."""
    return Health(status="ok")


@router.get("/readyz")
def readyz(request: Request) -> Health:
    """The database answers too."""
    db: Database = request.app.state.db
    db.ping()
    return Health(status="ready")


@router.get("/api/v1/version")
def version() -> Version:
    """The release of this control plane."""
    return Version(release=__version__)
