"""Settings in layers, for options declared in dataclasses (`launcher.settings.options`). Each value has its source.

defaults < /etc/distlaunch/config.toml < user file < project file < [clusters.NAME] < DISTLAUNCH_* < flags
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from launcher.agent import outer_run
from launcher.errors import ConfigError, RequestError, SpecError
from launcher.runs import reader
from launcher.settings.option import option
from launcher.settings.options import JobOptions
from launcher.settings.paths import anchored
from launcher.settings.shared_options import SharedOptions
from launcher.settings.toml_file import ConfigFile, project_file, read_file
from launcher.settings.values import from_text, from_toml
from launcher.system import names, trust
from launcher.system.dataclass import dataclass, field, fields, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")
_KINDS: dict[str, type] = {kind.__name__: kind for kind in (bool, int, float, str, tuple)}
"""The types of options, as their annotations begin: to have `typing` evaluate a hundred of these takes 5 ms."""

ENV_PREFIX = "DISTLAUNCH_"
SYSTEM_FILE = "/etc/distlaunch/config.toml"
PROJECT_FILE = "distlaunch.toml"
# A project file is found, not named, so it cannot set these: a run's directory names programs that are executed.
_NOT_IN_PROJECT = {"trust": "whom to trust", "runs_dir": "where runs are"}


def ranks(text: str) -> reader.Wanted | None:
    """The ranks of `--log-ranks`, None for all. Raises `SpecError` if the text is not a list of ranks."""
    try:
        return reader.parse_ranks(text)
    except ValueError:
        raise SpecError(f"log-ranks {text!r} is not a list of ranks", hint="write all, or 0,3-5") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalOptions:
    """Settings of the command line itself, at the top level of a settings file."""

    runs_dir: str = option(
        "", metavar="DIR", help="Directory of the run directories; otherwise ~/.distlaunch/runs.", path="whole",
        group="files",
    )  # fmt: skip
    output: str = option("human", metavar="human|json|jsonl|id", help="How results are printed.")
    log_ranks: str = option(
        "0", metavar="all|0,3-5", help="Ranks whose lines are shown while a run is followed.", check=ranks
    )
    trust: tuple[str, ...] = option(
        (), metavar="DIR|@GROUP", help="Directories and groups to trust like your own.", adds_up=True
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and its source: `flag`, `DISTLAUNCH_NODES`, `/path/file.toml:12` or `default`."""

    value: Any
    source: str
    layers: tuple[Setting, ...] = field(default=(), compare=False)
    """The values of all layers, in order; empty for a default."""

    file: str = field(default="", compare=False)
    place: int = field(default=-1, compare=False)
    """The number of its layer: of two options that exclude each other, the one with the higher number counts."""


@dataclass(frozen=True, slots=True)
class ClusterProfile:
    """One `[clusters.NAME]`, its keys merged over all files and checked."""

    name: str
    backend: str
    values: Mapping[str, Setting]
    redefined_by: str = ""
    """Path of the file whose backend replaces that of an earlier file."""


@dataclass(frozen=True, slots=True)
class Config:
    """The settings files and the environment, read once by `load`."""

    files: tuple[ConfigFile, ...]
    env: Mapping[str, str]
    project: ConfigFile | None = None
    """The one of these files that was found, not named."""

    ignored: frozenset[str] = frozenset()
    """Options that keep their defaults whatever is set."""

    def resolve(
        self,
        cls: type,
        *,
        flags: Mapping[str, Any] | None = None,
        cluster: ClusterProfile | None = None,
        above: Mapping[str, Setting] | None = None,
    ) -> dict[str, Setting]:
        """Each field of the options class with its value and source. A flag of None counts as not given.

        `above`: what comes before flags.
        """
        layers = [self._section(file, cls) for file in self.files]
        layers.append(dict(cluster.values) if cluster else {})
        layers.append(self._from_env(cls))
        layers.append({key: Setting(value, "flag") for key, value in (flags or {}).items() if value is not None})
        layers.append(dict(above or {}))
        counting = [{name: value for name, value in layer.items() if name not in self.ignored} for layer in layers]
        found = {}
        for item in fields(cls):
            places = [number for number, each in enumerate(counting) if item.name in each]
            given = [counting[number][item.name] for number in places]
            found[item.name] = _pile(given, item.default, item.metadata, place=max(places, default=-1))
        return found

    def of_project(self, cls: type, found: Mapping[str, Setting]) -> list[str]:
        """The options of the class that change what is executed and get a value from the project file."""
        path = self.project.path if self.project else None
        executing = [item for item in fields(cls) if item.metadata["executes"]]
        counting = {item.name: found[item.name].layers[0 if item.metadata["adds_up"] else -1 :] for item in executing}
        return [name for name, layers in counting.items() if any(layer.file == path for layer in layers)]

    def cluster_names(self) -> list[str]:
        """All clusters of all files, sorted."""
        return sorted({name for file in self.files for name in file.tables("clusters")})

    def cluster(self, name: str, options_of: Callable[[str], type]) -> ClusterProfile:
        """The profile with its keys checked. `options_of` returns a backend's options class or raises `LaunchError`."""
        parts = [(file, file.tables("clusters")[name]) for file in self.files if name in file.tables("clusters")]
        if not parts:
            if "," in name or name == "any":
                raise SpecError(f"{name!r} is several clusters, which only a launch takes", hint="name one of them")
            known = self.cluster_names()
            hint = names.hint(name, known) if known else f"add [clusters.{name}] to a settings file"
            raise ConfigError(f"unknown cluster {name!r}", hint=hint)
        backend, types, redefined_by = self._backend(name, parts, options_of)
        values: dict[str, Setting] = {}
        for file, table in parts:
            own = {key: value for key, value in table.items() if key != "backend"}
            try:
                found = checked(file, ("clusters", name), own, types, ("backend",))
            except ConfigError as error:
                why = error.hint and f"{name} has the backend {backend}; {error.hint}"
                raise ConfigError(error.message, hint=why) from None
            values |= _anchored(found, file, JobOptions, options_of(backend))
        return ClusterProfile(name, backend, values, redefined_by)

    def _backend(
        self, name: str, parts: list[tuple[ConfigFile, dict[str, Any]]], options_of: Callable[[str], type]
    ) -> tuple[str, dict[str, type], str]:
        """The cluster's backend, the types of the keys that it allows, and the file that replaced another's backend."""
        given = [(file, table["backend"]) for file, table in parts if "backend" in table]
        if not given:
            where = parts[-1][0].where("clusters", name, "backend")
            raise ConfigError(f"{where}: [clusters.{name}] names no backend", hint='add a line like backend = "slurm"')
        file, backend = given[-1]
        try:
            options = options_of(str(backend))
        except RequestError as error:
            where = file.where("clusters", name, "backend")
            raise ConfigError(f"{where}: {error.message} in [clusters.{name}]", hint=error.hint) from None
        redefined_by = file.path if len({str(backend) for _, backend in given}) > 1 else ""
        return str(backend), {**field_types(JobOptions), **field_types(options)}, redefined_by

    def _section(self, file: ConfigFile, cls: type) -> dict[str, Setting]:
        """The file's values of these options: global ones at its top level, options of every launch in `[defaults]`."""
        if cls is GlobalOptions:
            top = {key: value for key, value in file.values.items() if key not in ("defaults", "clusters")}
            return _anchored(checked(file, (), top, field_types(cls), ("defaults", "clusters")), file, cls)
        table, types = file.table("defaults"), field_types(cls)
        if cls is JobOptions:
            return _anchored(checked(file, ("defaults",), table, {**types, **field_types(SharedOptions)}), file, cls)
        shared = {key: value for key, value in table.items() if key in field_types(SharedOptions) and key in types}
        return checked(file, ("defaults",), shared, types)

    def given(self, name: str, kind: type) -> Iterator[Setting]:
        """What `[defaults]` of the files and a variable set for an option of this type, of any backend."""
        for file in self.files:
            if name in (table := file.table("defaults")):
                yield checked(file, ("defaults",), {name: table[name]}, {name: kind})[name]
        if (variable := ENV_PREFIX + name.upper()) in self.env and variable not in outer_run.of_it(self.env):
            yield Setting(from_text(self.env[variable], kind, variable), variable)

    def _from_env(self, cls: type) -> dict[str, Setting]:
        found = {}
        workers_own = outer_run.of_it(self.env)
        for key, kind in field_types(cls).items():
            name = ENV_PREFIX + key.upper()
            if name in self.env and name not in workers_own:
                found[key] = Setting(from_text(self.env[name], kind, name), name)
        return found


def load(env: Mapping[str, str] | None = None, cwd: str | None = None) -> Config:
    """Read the settings files that exist. Raises `ConfigError` for one that is invalid or cannot be read."""
    env = os.environ if env is None else env
    trusted = _trusted(Config((), env)._from_env(GlobalOptions))
    files: list[ConfigFile] = []
    for path in (env.get("DISTLAUNCH_SYSTEM_CONFIG") or SYSTEM_FILE, user_file(env)):
        if path and (file := read_file(path, trusted=trusted)):
            files.append(file)
            trusted += _trusted(Config((), env)._section(file, GlobalOptions))
    path = project_file(PROJECT_FILE, cwd)
    nearer = f"; or put a {PROJECT_FILE} of your own nearer, which may be empty"
    project = read_file(path, more=nearer, trusted=trusted) if path else None
    if project:
        for key in filter(project.values.__contains__, _NOT_IN_PROJECT):
            hint = f"put it into {SYSTEM_FILE} or ~/.config/distlaunch/config.toml, or set {ENV_PREFIX}{key.upper()}"
            raise ConfigError(f"{project.where(key)}: a project file cannot decide {_NOT_IN_PROJECT[key]}", hint=hint)
        files.append(project)
    trust.except_for(trusted)  # only now: other threads need those of the last call
    config = Config(tuple(files), env, project)
    for cls in (GlobalOptions, JobOptions):
        config.resolve(cls)
    return config


def _trusted(settings: Mapping[str, Setting]) -> tuple[str, ...]:
    setting = settings.get("trust", Setting((), "default"))
    for word in setting.value:
        if not word.startswith(("/", "~/", "@")):
            raise ConfigError(f"{setting.source}: trust {word!r} is neither an absolute path nor @GROUP")
    return tuple(setting.value)


def _anchored(settings: dict[str, Setting], file: ConfigFile, *classes: type) -> dict[str, Setting]:
    """The settings, with paths resolved relative to the file."""
    values = anchored({key: item.value for key, item in settings.items()}, file.directory, *classes)
    return {key: replace(item, value=values[key]) for key, item in settings.items()}


def user_file(env: Mapping[str, str]) -> str | None:
    """Path of the user's settings file; None without a home directory."""
    base = env.get("XDG_CONFIG_HOME") or (os.path.join(env["HOME"], ".config") if env.get("HOME") else None)
    return os.path.join(base, "distlaunch", "config.toml") if base else None


def build(cls: type[T], settings: Mapping[str, Setting]) -> T:
    """An instance of the options class with the resolved values."""
    return cls(**{key: setting.value for key, setting in settings.items()})


@cache
def field_types(cls: type) -> dict[str, type]:
    """Each field of an options class with its plain type; `tuple` stands for `tuple[str, ...]`."""
    return {item.name: _KINDS[str(item.type).removesuffix(" | None").partition("[")[0]] for item in fields(cls)}


def checked(
    file: ConfigFile, section: tuple[str, ...], table: Mapping[str, Any], types: Mapping[str, type],
    more: tuple[str, ...] = (),
) -> dict[str, Setting]:  # fmt: skip
    """The table's values as settings. Raises `ConfigError` for keys not in `types` and for values of other types."""
    settings = {}
    for key, value in table.items():
        where = file.where(*section, key)
        place = f"in [{'.'.join(section)}]" if section else "at the top level"
        if key not in types:
            what = "section" if isinstance(value, dict) else "key"
            raise ConfigError(f"{where}: unknown {what} {key!r} {place}", hint=_hint(section, key, [*types, *more]))
        settings[key] = Setting(from_toml(value, types[key], f"{where}: {key}"), where, file=file.path)
    return settings


def _hint(section: tuple[str, ...], key: str, known: list[str]) -> str:
    """The nearest name, or the section to which the key belongs."""
    elsewhere = ""
    if not section and key in {**field_types(JobOptions), **field_types(SharedOptions)}:
        return f"write {key} below [defaults]"
    if section == ("defaults",) and not names.nearest(key, known):
        elsewhere = f"an option of one backend belongs to a [clusters.NAME], or to {ENV_PREFIX}{key.upper()}; "
    return elsewhere + names.hint(key, known)


def _pile(given: list[Setting], default: Any, meta: Mapping[str, Any], *, place: int) -> Setting:
    """The last layer's value; for options that add up, the values of all layers in order, each at its last place."""
    if not given:
        return Setting(default, "default")
    if not meta.get("adds_up"):
        return Setting(given[-1].value, given[-1].source, tuple(given), place=place)
    values = [value for setting in given for value in setting.value]
    if not meta["repeats"]:
        values = [*dict.fromkeys(reversed(values))][::-1]
    return Setting(tuple(values), " + ".join(setting.source for setting in given), tuple(given), place=place)
