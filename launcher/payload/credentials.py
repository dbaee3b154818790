"""Files and variables that look like credentials: they leave this machine only on explicit request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from launcher.errors import SpecError
from launcher.system import amounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HEAD_BYTES = 1 << 20
"""How much of a file is examined."""

_NAMED = re.compile(
    r"""/(?:
      \.env(?:rc|\.(?!example|sample|template|dist)[^/]*)? | [._]netrc | \.pgpass | \.my\.cnf | \.pypirc"""
    r""" | \.git-credentials
    | \.htpasswd
    | \.dockercfg | \.dockerconfigjson | \.docker/config\.json | (?:[^/]*[.-])?kubeconfig(?:\.ya?ml)?"""
    r""" | \.kube/(?:config|cache/.*)
    | id_(?:rsa|dsa|ecdsa|ed25519)[^/.]* | \.ssh/(?!config|known_hosts|authorized_keys)[^/]*(?<!\.pub) | \.gnupg/.*
    | [^/]*\.(?:p12|pfx|jks|keystore|ppk|kdbx) | \.?vault[-_](?:token|pass)[^/]*
    | \.aws/(?:credentials|.*cache/.*) | gcloud/(?:.*credentials.*|access_tokens\.db|legacy_.*) | \.azure/.*token.*"""
    r""" | \.oci/config
    | application_default_credentials\.json | client_secret[^/]*\.json | \.s3cfg | \.boto | \.databrickscfg"""
    r""" | rclone\.conf
    | kaggle\.json | \.?huggingface/(?:token|stored_tokens) | gh/hosts\.yml
    | \.cargo/credentials[^/]* | \.terraform\.d/credentials[^/]*
    | \.streamlit/secrets\.toml | \.modal\.toml | \.comet\.config | \.cdsapirc
    )\Z""",
    re.VERBOSE | re.IGNORECASE,
)

_PRIVATE_KEY = re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-\d")
_KEY_FILES = re.compile(r"(?:/[^/.]+|\.(?:pem|key|crt|cer|p8|asc|gpg|txt))\Z", re.IGNORECASE)
"""Files in which a private key may follow something else, such as its certificate. Elsewhere it comes first."""

_CONTENTS = tuple(
    (re.compile(files, re.IGNORECASE), words, re.compile(content, re.MULTILINE))
    for files, words, content in (
        (
            r"\.json\Z",
            (b'"private_key"', b'"refresh_token"', b'"client_secret"', b'"auths"'),
            (
                rb'"private_key"\s*:\s*"|"refresh_token"\s*:\s*"|"client_secret"\s*:\s*"|'
                rb'"auths"\s*:\s*\{[^\0]*?"auth"\s*:\s*"'
            ),
        ),
        (
            r"(?:\.ya?ml|\.conf|/[^/.]*)\Z",
            (b"kind:",),
            rb"\A(?=[^\0]*^kind:\s*Config\b)[^\0]*^[ \t]*(?:- )?(?:client-key-data|token|password):[ \t]*\S",
        ),
        (
            r"(?:\.ini|\.cfg|\.conf|\.toml|/[^/.]*)\Z",
            (b"aws_secret_access_key",),
            rb"^[ \t]*aws_secret_access_key[ \t]*=[ \t]*\S",
        ),
        (
            r"/\.?(?:npmrc|yarnrc(?:\.yml)?)\Z",
            (b"_auth", b"npmAuthToken", b"_password"),
            rb"_auth(?:Token)?\s*=\s*\S|npmAuthToken:\s*\S|_password\s*=\s*\S",
        ),
        (r"/(?:pip\.conf|\.condarc|\.gitconfig)\Z", (b"://",), rb"://[^/\s:@]+:[^/\s@]+@"),
    )
)
"""Which files, words of which one is in a content that fits, as looking for them takes a tenth of the time, and what
fits."""

_DOTENV = re.compile(r"\.env\Z", re.IGNORECASE)
_LINE = re.compile(r"^[ \t]*(?:export[ \t]+)?(\w+)[ \t]*=[ \t]*[\"']?([^\s\"']*)", re.MULTILINE)

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:API_?KEY|SECRET(?:_ACCESS)?_?KEY|ACCESS_KEY|ACCOUNT_KEY|PRIVATE_KEY|SIGNING_KEY|ENCRYPTION_KEY"
    r"|LICENSE_KEY|SECRET|TOKEN|PAT|CREDENTIALS?|PASSPHRASE|PWD)\Z|PASSWORD\Z|PASSWD\Z",
    re.IGNORECASE,
)
_NO_SECRET_NAME = re.compile(
    r"(?:PAD|EOS|BOS|UNK|MASK|SEP|CLS|SPECIAL|STOP|START|BEGIN|END|IMAGE)_TOKEN\Z", re.IGNORECASE
)
_NO_SECRET = re.compile(
    r"|[/~].*|\.\.?/.*|\d{1,6}|true|false|yes|no|on|off|none|null|\$\w+|\$\{\w+\}", re.IGNORECASE | re.DOTALL
)
"""Values that are not secrets, whatever the name: empty, paths, small numbers, words, references to variables."""

_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9+/_=.-]{20,}")
_SECRET = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,}|sk-[\w-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|xox[abprs]-[\w-]{10,}|AIza[\w-]{35}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.)|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|://[^/\s:@]*:[^/\s@]+@"
)


def named(path: str) -> bool:
    """Whether a file with this absolute path looks like credentials, whatever its content."""
    return _NAMED.search(path) is not None


def inside(path: str, head: bytes) -> bool:
    """Whether the beginning of a file contains a private key, a token, or the password of an account."""
    key = _PRIVATE_KEY.search(head) if b"PRIVATE KEY" in head or b"PuTTY" in head else None
    if key and (
        not head[: key.start()].strip() or (_KEY_FILES.search(path) and head[: key.start()].endswith((b"\n", b"\r")))
    ):
        return True
    for files, words, content in _CONTENTS:
        if files.search(path) and any(word in head for word in words) and content.search(head):
            return True
    return bool(_DOTENV.search(path)) and any(is_secret(*line) for line in _LINE.findall(head.decode(errors="replace")))


def is_secret(name: str, value: str) -> bool:
    """Whether a variable with this name and value looks like a key, a token or a password."""
    if _NO_SECRET.fullmatch(value):
        return False
    if _SECRET.search(value):
        return True
    if _SECRET_NAME.search(name):
        return not _NO_SECRET_NAME.search(name)
    return name.upper().endswith("KEY") and _RANDOM.fullmatch(value) is not None


def check_files(names: Iterable[str]) -> None:
    """Raise `SpecError` with the names of files that look like credentials, if there are any."""
    listed = list(names)
    if listed:
        raise SpecError(
            f"files that look like credentials would be sent with the run: {amounts.listed(listed, 10)}",
            hint="keep it out of the directory, or out of git and in .gitignore; --ship-secrets sends it anyway",
        )


def check_variables(pairs: Iterable[str], here: Mapping[str, str]) -> None:
    """Raise `SpecError` for a `K=V`, or a `K` with its value in `here`, that looks like a key: it would be readable."""
    for pair in pairs:
        name, given, value = pair.partition("=")
        if is_secret(name, value if given else here.get(name, "")):
            first = f"export {name} here, then " if given else ""
            raise SpecError(
                f"env {name}: its value looks like a key, and would be kept in files and objects that others may read",
                hint=f"{first}--secret {name} in place of --env {name}; --ship-secrets sends it as plain text anyway",
            )


def check_lines(what: str, lines: Iterable[str]) -> None:
    """Raise `SpecError` if shell lines set a variable to something that looks like a key."""
    for name, value in _LINE.findall("\n".join(lines)):
        if is_secret(name, value):
            raise SpecError(
                f"{what} sets {name}, whose value looks like a key, and would be kept in files that others may read",
                hint=f"export {name} here, then --secret {name}; --ship-secrets sends it as plain text anyway",
            )


def check_manifest(what: str, value: Any) -> None:
    """Raise `SpecError` if a `name` and `value` in a Kubernetes object form a variable that looks like a key."""
    if isinstance(value, dict):
        name, text = value.get("name"), value.get("value")
        if isinstance(name, str) and isinstance(text, str):
            check_lines(what, [f"{name}={text}"])
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        check_manifest(what, part)


def masked(pair: str) -> str:
    """`K=V` without a value that looks like a key."""
    name, given, value = pair.partition("=")
    return f"{name}=..." if given and is_secret(_variable(name), value) else pair


def masked_command(words: Iterable[str]) -> list[str]:
    """The words of a command without values that look like keys: `--token=...`, `--token ...`."""
    shown, option = [], ""
    for word in words:
        own = option if option.startswith("-") and not word.startswith("-") else ""
        whole = own or "=" not in word
        shown.append("..." if whole and is_secret(_variable(own), word) else masked(word))
        option = word
    return shown


def _variable(option: str) -> str:
    """How a variable with the name of an option is spelled."""
    return option.lstrip("-").replace("-", "_")
