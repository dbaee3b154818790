"""The settings that a launch would use, all checked, so that mistakes show up before a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher import backends
from launcher.agent.named_tuple import NamedTuple
from launcher.errors import RequestError
from launcher.payload import credentials
from launcher.service.request import check_job, warn_of_variables
from launcher.settings import checks, config
from launcher.settings.options import JobOptions
from launcher.settings.shared_options import SharedOptions
from launcher.system.dataclass import replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.results.cluster import Settings


class Effective(NamedTuple):
    """All settings, and where they come from."""

    settings: dict[str, config.Setting]
    files: list[str]
    clusters: list[config.ClusterProfile]

    def to_json(self) -> Settings:
        """Plain JSON, in which values that look like credentials are masked."""
        return {
            "files": self.files,
            "settings": {
                key: {"value": masked(item.value, key), "source": item.source} for key, item in self.settings.items()
            },
            "clusters": {item.name: {"backend": item.backend} for item in self.clusters},
        }


def effective(loaded: config.Config, general: Mapping[str, config.Setting], cluster: str | None) -> Effective:
    """The settings as they apply to this cluster; None: without a cluster."""
    warn_of_variables(loaded.env)
    checks.check(config.GlobalOptions, general, every=True)
    check_job(loaded.resolve(JobOptions), every=True)
    profiles = {name: loaded.cluster(name, _options_of) for name in loaded.cluster_names()}
    for profile in profiles.values():
        check_job(loaded.resolve(JobOptions, cluster=profile), every=True)
        options = _options_of(profile.backend)
        checks.check(options, loaded.resolve(options, cluster=profile), every=True)
    of_backends = _of_backends(loaded)
    chosen = loaded.cluster(cluster, _options_of) if cluster else None
    shared = {} if chosen else {**of_backends, **loaded.resolve(SharedOptions)}
    found = {**general, **loaded.resolve(JobOptions, cluster=chosen), **shared}
    files = [file.path for file in loaded.files]
    if chosen:
        own = loaded.resolve(_options_of(chosen.backend), cluster=chosen)
        found |= own
        files += backends.load(chosen.backend)(config.build(_options_of(chosen.backend), own)).settings_files()
    return Effective(found, files, list(profiles.values()))


def _of_backends(loaded: config.Config) -> dict[str, config.Setting]:
    """What is set for backends without a cluster. Raises the error of a value that no backend with the option takes."""
    found: dict[str, config.Setting] = {}
    errors: dict[str, RequestError] = {}
    for options in map(_options_of, backends.names()):
        defaults = config.Config((), {}).resolve(options)
        for name, kind in config.field_types(options).items():
            try:
                given = tuple(loaded.given(name, kind))
                setting = replace(defaults[name], layers=given)
                checks.check(options, {**defaults, name: setting}, every=True)
                found |= {name: given[-1]} if given else {}
            except RequestError as error:
                errors[name] = error
    for name, wrong in errors.items():
        if name not in found:
            raise wrong
    return found


def masked(value: Any, name: str) -> Any:
    """The value of this setting, with anything that looks like a credential masked; of URLs to notify only the host."""
    if name == "notify":
        from launcher.settings import notify

        return [notify.shown(part) for part in value]
    if isinstance(value, (list, tuple)):
        return [credentials.masked(str(part)) for part in value]
    return credentials.masked(value) if isinstance(value, str) else value


def _options_of(name: str) -> type:
    return backends.load(name).options
