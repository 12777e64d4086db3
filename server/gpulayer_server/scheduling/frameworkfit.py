"""Whether the frameworks that a job asks for work where it would use them, and every reason why not."""

from __future__ import annotations

from gpulayer.protocol.types import Framework, Inventory, Reason
from gpulayer_server.scheduling import versions
from gpulayer_server.scheduling.asked import Asked, AskedFramework
from gpulayer_server.scheduling.candidate import Candidate

#: How people write the kinds of devices.
_WORDS = {"cuda": "CUDA", "rocm": "ROCm", "mps": "MPS", "cpu": "the CPU"}


def frameworks_fit(asks: Asked, inventory: Inventory) -> bool:
    """Whether all frameworks work there, as far as they were probed: the quick form of `framework_reasons`."""
    for each in asks.frameworks:
        if each.name in inventory.probing:
            continue
        found = find(each.name, inventory)
        if found is None or not found.version or not _version_fits(each, found) or not _works(asks, found):
            return False
    return True


def framework_reasons(asks: Asked, worker: Candidate) -> list[Reason]:
    """Every framework that is missing there, has another version, or does not work on the kind of device."""
    inventory = worker.inventory
    reasons: list[Reason] = []
    for each in asks.frameworks:
        if each.name in inventory.probing:
            continue
        found = find(each.name, inventory)
        if found is None or not found.version:
            reasons.append(_missing(asks, each, found, worker))
            continue
        if not _version_fits(each, found):
            reasons.append(_another_version(asks, each, found, worker))
        # where there is no such device at all, a build for it would change nothing: that is told of the devices
        if not _works(asks, found) and (asks.kind is None or any(d.kind == asks.kind for d in inventory.devices)):
            reasons.append(_does_not_work(asks, found, worker))
    return reasons


def find(name: str, inventory: Inventory) -> Framework | None:
    """What the probe of a framework showed; None where it was not looked for."""
    return next((each for each in inventory.frameworks if each.name == name), None)


def _version_fits(each: AskedFramework, found: Framework) -> bool:
    return each.versions is None or versions.satisfies(found.version, each.versions)


def _works(asks: Asked, found: Framework) -> bool:
    if asks.kind is not None:
        return asks.kind in found.works
    return "cpu" in found.works or (found.name == "mlx" and "mps" in found.works)


# ---------------------------------------------------------------- reasons


def _missing(asks: Asked, each: AskedFramework, found: Framework | None, worker: Candidate) -> Reason:
    why = found.problems.get("", "") if found is not None else ""
    return Reason(
        worker=worker.name,
        code="framework",
        text=f"framework {each.name!r} not installed" + (f": {why}" if why else ""),
        wanted=each.text,
        remedy=_install(asks, each.name, str(each.versions or ""), worker),
    )


def _another_version(asks: Asked, each: AskedFramework, found: Framework, worker: Candidate) -> Reason:
    return Reason(
        worker=worker.name,
        code="framework_version",
        text=f"needs {each.text}, {each.name} {found.version} is installed",
        wanted=each.text,
        found=found.version,
        remedy=_install(asks, each.name, str(each.versions or ""), worker),
    )


def _does_not_work(asks: Asked, found: Framework, worker: Candidate) -> Reason:
    kind, inventory = asks.kind or "cpu", worker.inventory
    remedy = _install(asks, found.name, "", worker)
    problem = found.problems.get(kind) or found.problems.get("") or ""
    if found.built_for == "cpu" and kind in ("cuda", "rocm"):
        text = f"{found.name} on this worker is a CPU build ({found.version})"
    else:
        text = f"{found.name} on this worker cannot use {_WORDS.get(kind, kind)}"
        if _too_new(kind, found, inventory):
            problem = _with_versions(problem or "the driver is too old", found, inventory)
            remedy = f"install a driver for CUDA {found.built_for} or newer on {worker.name}, or: {remedy}"
        elif not problem:
            problem = f"it works on {', '.join(found.works) or 'nothing'} only"
        text += f": {problem}"
    return Reason(
        worker=worker.name,
        code="framework_device",
        text=text,
        wanted=kind,
        found=",".join(found.works) or None,
        remedy=remedy,
    )


def _too_new(kind: str, found: Framework, inventory: Inventory) -> bool:
    """Whether it is built for a newer major version of CUDA than the driver knows: the minor ones are compatible."""
    built, driver = versions.known_numbers(found.built_for), versions.known_numbers(inventory.cuda)
    return kind == "cuda" and bool(built and driver and built[0] > driver[0])


def _with_versions(problem: str, found: Framework, inventory: Inventory) -> str:
    if inventory.cuda in problem and found.built_for in problem:
        return problem
    return f"{problem} (driver {inventory.cuda}, {found.name} built for {found.built_for})"


# ---------------------------------------------------------------- remedies


def _install(asks: Asked, name: str, wanted: str, worker: Candidate) -> str:
    """'install jax[cuda13] on gpu-box-2': the build that its driver can run."""
    kind, inventory = asks.kind or "cpu", worker.inventory
    if name == "cupy" and kind not in ("cuda", "rocm"):
        return f"ask for an accelerator that cupy works on, cuda or rocm, instead of {kind}"
    if kind == "cuda":
        package = _for_cuda(name, wanted, inventory)
    elif kind == "rocm":
        package = f"{name}{wanted} for ROCm"
    elif kind == "mps" and name in ("jax", "tensorflow"):
        package = f"{name}{wanted} and {name}-metal"
    elif kind == "cpu" and name == "mlx" and inventory.os == "linux":
        package = f"mlx[cpu]{wanted}"
    else:
        package = f"{name}{wanted}"
    return f"install {package} on {worker.name}"


def _for_cuda(name: str, wanted: str, inventory: Inventory) -> str:
    driver = next((device.driver for device in inventory.devices if device.kind == "cuda"), "")
    release = versions.cuda_release(inventory.cuda, driver)
    major = release.removesuffix(".x")
    if name == "cupy":
        return f"cupy-cuda{major}x{wanted}" if major else f"cupy{wanted} with CUDA"
    extra = {"jax": f"jax[cuda{major}]", "mlx": f"mlx[cuda{major}]", "tensorflow": "tensorflow[and-cuda]"}.get(name)
    return f"{extra}{wanted}" if extra else f"{name}{wanted} with CUDA {release}".rstrip()
