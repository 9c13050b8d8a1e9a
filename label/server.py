# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""MONAI Label's HTTP server, with sentences for bad requests, reports of trainings, and versions of the model.

GET  /pann/versions          all versions of the model, and the one that is served
POST /pann/rollback          serve the version before, or ?version=N
GET  /pann/trainings/        what is recorded of each training
GET  /pann/trainings/N       the report of a training
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from fastapi import Depends, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from monailabel.app import app
from monailabel.config import settings
from monailabel.endpoints.train import run_model
from monailabel.endpoints.user.auth import RBAC, User
from monailabel.interfaces.exception import (
    ImageNotFoundException,
    LabelNotFoundException,
    MONAILabelError,
    MONAILabelException,
)
from monailabel.interfaces.utils.app import app_instance

from bundle.errors import InputError
from bundle.untrusted import check_name
from label.datastore import check_tag

__all__ = ["app"]

logger = logging.getLogger(__name__)

NAMES = ("image", "label", "id")  # parameters that become names of files
# Who may ask, where the server was started with logins; else everybody.
ADMIN = Depends(RBAC(settings.MONAI_LABEL_AUTH_ROLE_ADMIN))
USER = Depends(RBAC(settings.MONAI_LABEL_AUTH_ROLE_USER))


# --- Bad requests ----------------------------------------------------------------------------------------------------
def refuse(error: Exception, status: int) -> JSONResponse:
    logger.info("refused (%d): %s", status, error)
    return JSONResponse({"detail": str(getattr(error, "msg", error))}, status_code=status)


@app.exception_handler(InputError)
async def refuse_input(request: Request, error: InputError) -> JSONResponse:
    return refuse(error, 400)


@app.exception_handler(json.JSONDecodeError)
async def refuse_json(request: Request, error: json.JSONDecodeError) -> JSONResponse:
    return refuse(InputError(f"expected JSON, found something else ({error}); correct the parameters"), 400)


@app.exception_handler(MONAILabelException)
async def refuse_request(request: Request, error: MONAILabelException) -> JSONResponse:
    missing = isinstance(error, ImageNotFoundException | LabelNotFoundException)
    known = error.error in (MONAILabelError.INVALID_INPUT, MONAILabelError.APP_INIT_ERROR)
    return refuse(error, 404 if missing or known else 500)


@app.middleware("http")
async def check_names(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
    """Names that a client sends stay names: with a folder in them they would be files anywhere on this machine."""
    try:
        for name in NAMES:
            for value in request.query_params.getlist(name):
                check_name(value, name) if value else None
        for value in request.query_params.getlist("tag"):
            check_tag(value) if value else None
    except InputError as error:
        return refuse(error, 400)
    return await go_on(request)


@app.middleware("http")
async def keep_versions(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
    """MONAI Label would write over the weights that are served, or delete them."""
    if request.url.path.startswith("/model") and request.method in ("PUT", "DELETE"):
        return refuse(InputError("model: versions come from trainings; see /pann/versions and /pann/rollback"), 405)
    return await go_on(request)


# --- Training --------------------------------------------------------------------------------------------------------
@app.post("/train/{model}")
async def train(
    model: str,
    params: dict[str, Any] | None = None,
    run_sync: bool = False,
    enqueue: bool = False,
    user: User = ADMIN,
) -> Any:
    """As MONAI Label's own, but what cannot run is refused now and not in the log."""
    app_instance().check_training(model, params or {})
    return run_model(model, params, run_sync, enqueue)


@app.post("/train/")
async def train_all(user: User = ADMIN) -> Any:
    raise InputError("train: name the model, as in POST /train/pann")


# MONAI Label's own routes for these come first otherwise.
for _ in range(2):
    app.router.routes.insert(0, app.router.routes.pop())


# --- Versions and reports --------------------------------------------------------------------------------------------
@app.get("/pann/versions")
async def versions(user: User = USER) -> dict[str, Any]:
    state = app_instance().state
    return {"served": state.served, "versions": [asdict(version) for version in state.versions]}


@app.post("/pann/rollback")
async def rollback(version: int | None = None, user: User = ADMIN) -> dict[str, Any]:
    return {"served": app_instance().state.roll_back(version)}


@app.get("/pann/trainings/")
async def trainings(user: User = USER) -> Any:
    return app_instance().state.trainings()


@app.get("/pann/trainings/{number}")
async def report(number: int, user: User = USER) -> Response:
    path = app_instance().state.training_folder(number) / "report.html"
    if not path.is_file():
        raise HTTPException(404, f"There is no report of training {number}; GET /pann/trainings/ lists all")
    return FileResponse(path, media_type="text/html")
