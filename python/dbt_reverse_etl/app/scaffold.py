"""`dbt-reverse-etl init`: the pieces of a first sync, written into a user's dbt project."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dbt_reverse_etl.app.scaffold_texts import BLOCK_COMMENT, EXAMPLE, MODEL, SYNC
from dbt_reverse_etl.app.scaffold_yaml import mapping, mappings, packages_of, parsed, raw, with_entry
from dbt_reverse_etl.base.dbt_options import model_paths, project_settings
from dbt_reverse_etl.base.errors import mistake
from dbt_reverse_etl.base.sql import package_root
from dbt_reverse_etl.config.profiles import BLOCK, FILE_NAME, profile_directories

PACKAGE = "reverse_etl"
PLACES = (f"packages/{PACKAGE}", f"local_packages/{PACKAGE}")
CARRIED = ("dbt_project.yml", "macros", "models")

_IGNORED = ("target/", "dbt_packages/", "logs/")
_DATA_OF_A_SESSION = ("spark-warehouse/", "metastore_db/", "derby.log")
_MATERIALIZED = re.compile(r"\bmaterialized['\"]?\s*[=:]\s*['\"](\w+)['\"]")
_CHANGELOG = re.compile(r"\bmaterialized['\"]?\s*[=:]\s*['\"]?changelog\b")


@dataclass
class _Project:
    """The user's project, its dbt_project.yml as `settings`, and what was written: paths relative to it, or absolute outside of it."""

    folder: Path
    settings: Mapping[str, Any]
    model_paths: Sequence[Path]
    say: Callable[[str], None]
    written: list[str] = field(default_factory=list)

    @property
    def package(self) -> str:
        """Where the dbt package is kept: not in the folder that `dbt deps` empties, which Jinja may name in its own way."""
        emptied, (own, other) = str(self.settings.get("packages-install-path") or "dbt_packages"), PLACES
        is_within = self.place(own).is_relative_to((self.folder / emptied).resolve())
        may_be = re.search(r"\{[{%].*(?<!\w)packages(?!\w)", emptied, re.DOTALL) and not self.is_left(own)
        return other if is_within or may_be else own

    def is_left(self, own: str) -> bool:
        """Whether `dbt deps` empties another folder: packages.yml lists the package here, and here it still is."""
        entries = packages_of(raw(_packages_file(self)))
        listed = [self.place(str(one["local"])) for one in entries if isinstance(one, Mapping) and "local" in one]
        return self.place(own) in listed and _holds_package(self.folder / own)

    def place(self, path: str) -> Path:
        """Without its last part followed, where `dbt deps` leaves a link."""
        return (self.folder / path).parent.resolve() / Path(path).name

    def files(self, *endings: str) -> Iterator[Path]:
        """The files below the model paths, in order."""
        for folder in self.model_paths:
            yield from sorted(path for path in folder.rglob("*") if path.suffix in endings and path.is_file())

    def stems(self, *endings: str) -> set[str]:
        return {path.stem for path in self.files(*endings)}

    def wrote(self, path: Path) -> None:
        inside = path.is_relative_to(self.folder)
        self.written.append(str(path.relative_to(self.folder) if inside else path))
        self.say(f"wrote {self.written[-1]}")

    def create(self, path: Path, text: str) -> bool:
        """Write a file that is not there yet."""
        if path.exists():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        self.wrote(path)
        return True


def initialize(
    project_dir: Path,
    say: Callable[[str], None],
    *,
    model: str | None = None,
    key: str | None = None,
    write_profile: bool = False,
) -> list[str]:
    """Write what is missing for a first sync; files of the user are kept, and run again it changes nothing.

    Args:
        model: an existing model to make a changelog and a sync of; without it only a commented example is written.
        key: its key column, or several with commas between.
        write_profile: add to a profiles.yml outside of the project, too.

    Returns:
        The paths that were written.

    Raises:
        ConfigurationError: no dbt project that can be read, no such model, or a file that is in the way; nothing was written.
    """
    project = _read_project(project_dir, say)
    source = _source_model(project, model, key)
    _refuse_foreign_package(project)
    _refuse_other_entries(project)
    _carry_package(project)
    _require_package(project)
    if source and key:
        _write_sync(project, source, [column.strip() for column in key.split(",")])
    else:
        _write_example(project)
    has_destinations = _write_profile(project, anywhere=write_profile)
    _say_what_is_next(project, "" if has_destinations else "; then destinations in place of `plan`, and dbt run pushes")
    return project.written


def _read_project(folder: Path, say: Callable[[str], None]) -> _Project:
    settings = project_settings(folder)
    if settings.get("name") == PACKAGE:
        found, file = f"the dbt package {PACKAGE} itself", str(folder / "dbt_project.yml")
        raise mistake(file, found, "a project of yours", "name it: --project-dir")
    return _Project(folder, settings, model_paths(folder, settings), say)


def _source_model(project: _Project, model: str | None, key: str | None) -> Path | None:
    if (model is None) != (key is None):
        given, other = ("--model", "--key COLUMN") if model else ("--key", "--model MODEL")
        raise mistake(given, f"no {other.split()[0]}", "both or none of them", f"add {other}")
    if model is None or key is None:
        return None
    if not all(re.fullmatch(r"[\w $.-]+", column.strip()) for column in key.split(",")):
        raise mistake("--key", "no name of a column", "a column, or columns with commas between", "correct it")
    models, versions = {path.stem: path for path in project.files(".sql", ".py")}, _versions(project)
    expected = "a model without versions: init writes for no other"
    if model in versions:
        name, version = versions[model]
        next_step = f"write its changelog and its sync yourself, from {{{{ ref({name!r}, v={version!r}) }}}}"
        raise mistake("--model", f"{model!r}, which has versions or is one", expected, next_step)
    if model in models and "." in model:
        raise mistake("--model", f"{model!r}, a name with a dot", expected, "rename its file")
    if model not in models:
        known = ", ".join(sorted(_plain(models, versions))) or "none"
        raise mistake("--model", repr(model), f"a model of this project: {known}", "correct it, or write the model")
    return models[model]


def _plain(models: Iterable[str], versions: Mapping[str, Any]) -> list[str]:
    return [model for model in models if model not in versions and "." not in model]


def _versions(project: _Project) -> dict[str, tuple[str, Any]]:
    """Model and version by the names that stand for them: of the file, and of the model itself, where it is the last version."""
    found: dict[str, tuple[str, Any]] = {}
    files = project.stems(".sql", ".py")
    for dotted in filter(None, (re.fullmatch(r"(.+)\.v(\w+)", stem) for stem in sorted(files))):
        found[dotted[0]] = (dotted[1], parsed(dotted[2]))
        if dotted[1] not in files:
            found[dotted[1]] = found[dotted[0]]
    for file in project.files(".yml", ".yaml"):
        for model in mappings(mapping(raw(file)), "models"):
            name = str(model.get("name"))
            for version in mappings(model, "versions"):
                stem = str(version.get("defined_in") or f"{name}_v{version.get('v')}")
                found[stem] = found[name] = (name, version.get("v"))
    return found


def _refuse_foreign_package(project: _Project) -> None:
    folder = project.folder / project.package
    if folder.is_symlink() and _content(folder) != _content(package_root()):
        raise mistake(
            str(folder), "a link to something else", "a folder of this project, or nothing", "remove the link"
        )
    if folder.exists() and not _holds_package(folder):
        raise mistake(str(folder), "something else", f"the dbt package {PACKAGE}, or nothing", "move it away")


def _refuse_other_entries(project: _Project) -> None:
    """dbt takes no package from two places. The message names no URL, which may hold a token."""
    file = _packages_file(project)
    for entry in packages_of(raw(file)):
        if (kind := _kind(project, entry)) not in ("", "own"):
            found, expected = f"this package by `{kind}`", f"`local: {project.package}` alone, which init writes"
            next_step = "remove that entry and run init again, or keep it, without init, and update it yourself"
            raise mistake(str(file), found, expected, next_step)


def _kind(project: _Project, entry: Any) -> str:
    """The key by which an entry would install the package, `own` for that of the carried copy; empty for other packages."""
    if not isinstance(entry, Mapping):
        return ""
    if "local" in entry:
        if project.place(str(entry["local"])) in [project.place(one) for one in PLACES if one != project.package]:
            return "local"  # of an earlier init; `dbt deps` may have deleted it, or left a link that leads to itself
        folder = (project.folder / str(entry["local"])).resolve()
        is_own = folder == (project.folder / project.package).resolve()
        return "own" if is_own else "local" if _holds_package(folder) else ""
    kind = next((one for one in ("tarball", "git", "private") if one in entry), "package")
    place = str(entry.get("name") if kind == "tarball" else entry.get("subdirectory") or entry.get(kind))
    is_ours = re.fullmatch(rf"(.*[/:])?(dbt-reverse-etl|{PACKAGE})(\.git)?/*", place)
    return kind if is_ours else ""


def _holds_package(folder: Path) -> bool:
    return mapping(raw(folder / "dbt_project.yml")).get("name") == PACKAGE


def _carry_package(project: _Project) -> None:
    """A copy in the project: works offline and in dbt Cloud, and macros and runner cannot disagree."""
    target, origin = project.folder / project.package, package_root()
    if _content(target) == _content(origin):
        return
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in _content(origin):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(origin / name, target / name)
    project.wrote(target)


def _content(root: Path) -> dict[str, bytes]:
    """The files of the package by relative path; nothing else that stands beside them."""
    places = [root / name for name in CARRIED]
    files = [path for place in places for path in (place.rglob("*") if place.is_dir() else [place]) if path.is_file()]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(files)}


def _require_package(project: _Project) -> None:
    entry, line = {"local": project.package}, f"- local: {project.package}"
    file = _packages_file(project)
    if project.create(file, f"packages:\n  {line}\n"):
        return
    listed = packages_of(text := raw(file))
    if "own" in [_kind(project, one) for one in listed]:
        return
    added = with_entry(text, line)
    if added is None or packages_of(added) != [entry, *listed]:
        then = "Write its packages as lines below `packages:`, with this one:"
        project.say(f"{file.name} cannot be edited safely. {then}\n  {line}")
        return
    file.write_bytes(added.encode("utf-8"))
    project.wrote(file)


def _packages_file(project: _Project) -> Path:
    """dbt allows the list in one of two files."""
    other = project.folder / "dependencies.yml"
    return other if "packages" in mapping(raw(other)) else project.folder / "packages.yml"


def _write_sync(project: _Project, source: Path, key: Sequence[str]) -> None:
    model = source.stem
    changelog = model if _is_changelog(project, source) else f"{model}_changelog"
    name = re.sub(r"\W", "_", changelog.removesuffix("_changelog"))
    unique_key = repr(key[0] if len(key) == 1 else list(key))
    # A second one of either name in another folder would be an error of dbt.
    known = next((path for path in project.files(".sql", ".py") if path.stem == changelog), None)
    if known is None:
        project.create(source.parent / f"{changelog}.sql", MODEL.format(key=unique_key, model=model))
    elif known != source:
        project.say(f"{known.relative_to(project.folder)} is there, and is left as it is")
    destination = _destination(project)
    sync = re.sub(r"\W", "_", f"{destination}_{name}")
    if f"{changelog}_sync" not in project.stems(".yml", ".yaml") and not _has_sync(project, sync, changelog):
        written = SYNC.format(sync=sync, name=name, changelog=changelog, destination=destination)
        project.create(source.parent / f"{changelog}_sync.yml", written)


def _destination(project: _Project) -> str:
    """The first one of our block, if it has any."""
    block = _profiles(project)[-1].get(BLOCK)
    outputs = block.get("outputs") if isinstance(block, Mapping) else None
    targets = outputs.values() if isinstance(outputs, Mapping) else ()
    return next((str(name) for target in targets if isinstance(target, Mapping) for name in target), "crm")


def _is_changelog(project: _Project, source: Path) -> bool:
    """Whether a model is one already, by its own file, a properties file or dbt_project.yml: the first that names a materialization decides."""
    if own := _MATERIALIZED.findall(raw(source)):
        return "changelog" in own
    listed = [one for file in project.files(".yml", ".yaml") for one in mappings(mapping(raw(file)), "models")]
    configs = [one.get("config") for one in listed if one.get("name") == source.stem]
    said = [one["materialized"] for one in configs if isinstance(one, Mapping) and "materialized" in one]
    return "changelog" in (said or [_by_folder(project, source)])


def _by_folder(project: _Project, source: Path) -> Any:
    """`materialized` of dbt_project.yml for a model: that of the innermost folder."""
    root = next(path for path in project.model_paths if source.is_relative_to(path))
    found, level = None, project.settings.get("models")
    for name in (project.settings.get("name"), *source.relative_to(root).with_suffix("").parts, None):
        if isinstance(level, Mapping):
            found = level.get("+materialized", level.get("materialized", found))
            level = level.get(name)
    return found


def _has_sync(project: _Project, name: str, changelog: str) -> bool:
    """Whether an exposure has this name, or is a sync of this changelog, whatever its file is called."""
    exposures = [one for file in project.files(".yml", ".yaml") for one in mappings(mapping(raw(file)), "exposures")]
    refs = re.compile(rf"""ref\(\s*(['"][^'"]*['"]\s*,\s*)?['"]{re.escape(changelog)}['"]""")
    own = [one for one in exposures if "reverse_etl" in str(one.get("meta")) + str(one.get("config"))]
    is_over = any(refs.search(str(one.get("depends_on"))) for one in own)
    return is_over or any(one.get("name") == name for one in exposures)


def _write_example(project: _Project) -> None:
    files = [project.folder / "dbt_project.yml", *project.files(".sql", ".yml", ".yaml")]
    if any(_CHANGELOG.search(raw(path)) for path in files):
        return
    sync = SYNC.format(sync="crm_MODEL", name="MODEL", changelog="MODEL_changelog", destination="crm")
    commented = "".join(f"# {line}\n" for line in sync.splitlines())
    project.create(project.model_paths[0] / "reverse_etl_example.yml", EXAMPLE + commented)
    models = _plain((path.stem for path in project.files(".sql")), _versions(project))
    if models:
        project.say(f"Make a sync of a model: dbt-reverse-etl init --model {models[0]} --key COLUMN")


def _write_profile(project: _Project, *, anywhere: bool) -> bool:
    """Returns whether our block was there already."""
    file, text, profiles = _profiles(project)
    if BLOCK in profiles:
        return True
    block = _block(profiles, project.settings)
    if file is None:
        project.say(f"There is no {FILE_NAME} yet. It needs, beside the dbt profile:\n{block}")
    elif not (anywhere or file.resolve().is_relative_to(project.folder.resolve())):
        project.say(f"Add to {file}, or run this with --write-profile:\n{block}")
    elif parsed(f"{text}\n{block}") != {**profiles, **parsed(block)}:
        project.say(f"{file} cannot be edited safely. Add at its end:\n{block}")
    else:
        with file.open("a", encoding="utf-8") as opened:
            opened.write(f"{'' if text.endswith(chr(10)) or not text else chr(10)}\n{block}")
        project.wrote(file)
    return False


def _profiles(project: _Project) -> tuple[Path | None, str, Mapping[Any, Any]]:
    """The file that dbt reads, if there is one, its text, and what that holds."""
    places = profile_directories(None, project.folder, os.environ)
    file = next((path for path in (place / FILE_NAME for place in places) if path.is_file()), None)
    text = raw(file) if file else ""
    return file, text, mapping(text)


def _block(profiles: Mapping[Any, Any], settings: Mapping[str, Any]) -> str:
    """Every target of the dbt profile plans: a target that is not named here is an error. Beside other profiles it says whose it is.

    A profile whose name is not written out, as `{{ env_var(...) }}`, may be any.
    """
    targets = [target for outputs in _outputs(profiles, settings) for target in outputs] or ["dev"]
    whose = {"projects": [settings["name"]]} if len(_known(profiles)) > 1 else {}
    block = {BLOCK: {**whose, "outputs": dict.fromkeys(targets, "plan")}}
    return BLOCK_COMMENT + yaml.safe_dump(block, sort_keys=False)


def _outputs(profiles: Mapping[Any, Any], settings: Mapping[str, Any]) -> list[Mapping[Any, Any]]:
    """The targets of the dbt profile."""
    known, name = _known(profiles), str(settings.get("profile"))
    found = list(known.values()) if "{{" in name else [known.get(name)]
    return [outputs for outputs in found if isinstance(outputs, Mapping)]


def _known(profiles: Mapping[Any, Any]) -> dict[Any, Any]:
    return {name: one["outputs"] for name, one in profiles.items() if isinstance(one, Mapping) and "outputs" in one}


def _say_what_is_next(project: _Project, then: str) -> None:
    lines = raw(project.folder / ".gitignore").splitlines()
    targets = [target for outputs in _outputs(_profiles(project)[-1], project.settings) for target in outputs.values()]
    has_session = any(isinstance(target, Mapping) and target.get("method") == "session" for target in targets)
    ignored = (*_IGNORED, *_DATA_OF_A_SESSION) if has_session else _IGNORED
    absent = [name for name in ignored if not {name, name.strip("/"), f"/{name}"} & {line.strip() for line in lines}]
    if absent:
        project.say(f"Keep out of git, in .gitignore: {' '.join(absent)}")
    if _is_ignored(project):
        project.say(f"git ignores {project.package}, which dbt deps needs: change .gitignore, or git add --force it")
    project.say(f"{'Done' if project.written else 'Nothing to write'}. Next: dbt deps, dbt run{then}")


def _is_ignored(project: _Project) -> bool:
    """Whether a clone would lack the package. Without git, or out of a repository: no."""
    file = f"{project.package}/dbt_project.yml"
    command = ["git", "check-ignore", "-q", file]
    try:
        return subprocess.run(command, cwd=project.folder, capture_output=True, check=False).returncode == 0  # noqa: S603
    except OSError:
        return False
