"""The files of the chat page. They are public and contain only what comes with this package."""

from __future__ import annotations

from importlib import resources

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PAGE = "page.html"


def _read() -> dict[str, tuple[str, bytes]]:
    found = {}
    for file in resources.files(__package__).joinpath("static").iterdir():
        kind = TYPES.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            found[file.name] = (kind, file.read_bytes())
    return found


FILES = _read()  # By name: content type and content.

# If an agent's text got into the page, it could not run or load anything: scripts and styles are files of this server,
# and text cannot become markup or script at all (Trusted Types).
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
SAFETY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
}
