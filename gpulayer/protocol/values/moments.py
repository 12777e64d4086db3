"""Dates, times and their zones."""

from __future__ import annotations

import datetime
import importlib
import sys
from typing import TYPE_CHECKING, Any, cast

from . import tags
from .errors import LibraryMissing, ValueDamaged, ValueRefused, type_name, type_of
from .fields import fields

if TYPE_CHECKING:
    from .decoding import Decoder
    from .encoding import Encoder


def write_date(_encoder: Encoder, value: datetime.date) -> Any:
    """A date's tree."""
    return {tags.DATE: [value.year, value.month, value.day]}


def write_time(_encoder: Encoder, value: datetime.time) -> Any:
    """A time's tree."""
    return {tags.TIME: [*_clock(value), zone_tree(value.tzinfo)]}


def write_datetime(_encoder: Encoder, value: datetime.datetime) -> Any:
    """A datetime's tree."""
    return {tags.DATETIME: [value.year, value.month, value.day, *_clock(value), zone_tree(value.tzinfo)]}


def write_timedelta(_encoder: Encoder, value: datetime.timedelta) -> Any:
    """A timedelta's tree."""
    return {tags.TIMEDELTA: [value.days, value.seconds, value.microseconds]}


def _clock(value: datetime.time | datetime.datetime) -> list[int]:
    return [value.hour, value.minute, value.second, value.microsecond, value.fold]


def zone_tree(zone: Any) -> Any:
    """A tzinfo's tree.

    Raises:
        ValueRefused: neither a `datetime.timezone` nor a `ZoneInfo` that its key names.
    """
    if zone is None:
        return None
    if type(zone) is datetime.timezone:
        # __getinitargs__ tells a name that was given from one that follows from the offset
        initial: list[Any] = list(cast("Any", zone).__getinitargs__())
        offset, *name = initial
        return ["offset", offset.days, offset.seconds, offset.microseconds, name[0] if name else None]
    zoneinfo = sys.modules.get("zoneinfo")
    if zoneinfo is not None and type(zone) is zoneinfo.ZoneInfo:
        key = zone.key
        if key is not None and zoneinfo.ZoneInfo(key) is zone:
            return ["zone", key]
        raise ValueRefused(f"has a ZoneInfo that its key does not name: give one made by ZoneInfo({key!r})")
    pytz = sys.modules.get("pytz")
    if pytz is not None and isinstance(zone, pytz.tzinfo.BaseTzInfo) and zone.zone and pytz.timezone(zone.zone) is zone:
        return ["pytz", zone.zone]
    problem = f"has a tzinfo of type {type_name(type_of(zone))}, which does not travel"
    raise ValueRefused(f"{problem}: use zoneinfo.ZoneInfo or .astimezone(datetime.timezone.utc)")


def read_date(_decoder: Decoder, field: Any) -> datetime.date:
    """The date of a tree."""
    return datetime.date(*fields(field, int, int, int))


def read_time(_decoder: Decoder, field: Any) -> datetime.time:
    """The time of a tree."""
    *clock, fold, zone = fields(field, int, int, int, int, int, None)
    return datetime.time(*clock, tzinfo=read_zone(zone), fold=fold)


def read_datetime(_decoder: Decoder, field: Any) -> datetime.datetime:
    """The datetime of a tree."""
    *clock, fold, zone = fields(field, int, int, int, int, int, int, int, int, None)
    return datetime.datetime(*clock, tzinfo=read_zone(zone), fold=fold)


def read_timedelta(_decoder: Decoder, field: Any) -> datetime.timedelta:
    """The timedelta of a tree."""
    return datetime.timedelta(*fields(field, int, int, int))


def read_zone(tree: Any) -> datetime.tzinfo | None:
    """The tzinfo of a tree."""
    if tree is None:
        return None
    if type(tree) is list and tree[:1] == ["offset"]:
        _, days, seconds, microseconds, name = fields(tree, str, int, int, int, None)
        offset = datetime.timedelta(days, seconds, microseconds)
        return datetime.timezone(offset) if name is None else datetime.timezone(offset, name)
    kind, key = fields(tree, str, str)
    if kind not in ("zone", "pytz"):
        raise ValueDamaged("an unknown kind of time zone")
    try:
        return importlib.import_module("zoneinfo").ZoneInfo(key) if kind == "zone" else _pytz_zone(key)
    except (KeyError, OSError, ImportError, ValueError) as error:
        needed = "tzdata" if kind == "zone" else "pytz"
        raise LibraryMissing(f"the time zone {key!a} is not known here: install {needed}") from error


def _pytz_zone(key: str) -> datetime.tzinfo:
    return importlib.import_module("pytz").timezone(key)
