"""Requests to a Kubernetes API server: plain JSON in and out, errors in one line.

    api = connect(context=None)                     # a kubeconfig, or the pod that we run in
    api.list(PODS, "team-a", labels="app=x")        # a ObjectList: items and its resourceVersion
    api.get(PODS, "p", "team-a")                    # also create, replace, patch, delete
    api.create(PODS, body, "team-a", name="p", sub="binding")
    for kind, item in api.watch(PODS, version): …   # one connection; `reflect` goes on after it
    await api.stream("p", "team-a", "exec", […], …)  # a WebSocket; `attaching` speaks it

Who we are and where the cluster is, the official client says (kubeconfig, exec plugins, tokens
that are renewed); its models are not used, since ten thousand pods must be cheap. Objects are the
dictionaries of the wire. What fails raises `KubernetesError`, whose `status` is the HTTP status,
or 0 when nobody answered. Nothing is tried again here: callers know what may be. Any thread may
call.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from presage.model.errors import KubernetesError, MissingExtra

if TYPE_CHECKING:
    import urllib3
    from websockets.asyncio.client import ClientConnection

__all__ = [
    "CONFIG_MAPS",
    "EVENTS",
    "LEASES",
    "NETWORK_POLICIES",
    "NODES",
    "OLDEST",
    "PODS",
    "SECRETS",
    "SERVICES",
    "Json",
    "KubeApi",
    "ObjectList",
    "Resource",
    "connect",
    "hang_up",
]

Json = dict[str, Any]
OLDEST = (1, 20)
"""Older API servers are refused."""
PATCH_MERGE = "application/merge-patch+json"
PATCH_JSON = "application/json-patch+json"

_PAGE = 1000
_TIMEOUT_S = 30.0
_CONNECT_S = 5.0
_WATCH_S = 50
"""A watch ends after so long and is resumed: a connection that died silently is noticed."""
_SLACK_S = 15.0
_CONNECTIONS = 32
_NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object as paths name it."""

    plural: str
    group: str = ""
    """Empty for the core group."""
    version: str = "v1"
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str = "", sub: str = "") -> str:
        """Where it is; without a namespace, in all of them."""
        parts = [f"/apis/{self.group}" if self.group else "/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        return "/".join([*parts, self.plural, *filter(None, (name, sub))])


PODS = Resource("pods")
NODES = Resource("nodes", namespaced=False)
SERVICES = Resource("services")
SECRETS = Resource("secrets")
CONFIG_MAPS = Resource("configmaps")
EVENTS = Resource("events")
NETWORK_POLICIES = Resource("networkpolicies", "networking.k8s.io")
LEASES = Resource("leases", "coordination.k8s.io")
_REVIEWS = Resource("selfsubjectaccessreviews", "authorization.k8s.io", namespaced=False)


@dataclass(frozen=True, slots=True)
class ObjectList:
    """Objects, and the version of the whole from which to watch."""

    items: Sequence[Json]
    version: str


def connect(
    context: str | None = None, *, kubeconfig: Path | None = None, namespace: str | None = None
) -> KubeApi:
    """The cluster of a context (the current one, if none is named), or the one that we run in.
    Raises KubernetesError when none answers, or one that is too old."""
    try:
        from kubernetes import client, config  # type: ignore[import-untyped]  # ships none
    except ImportError:
        raise MissingExtra("kubernetes", "a Kubernetes cluster") from None
    settings = client.Configuration()
    own = None
    inside = "KUBERNETES_SERVICE_HOST" in os.environ and not os.environ.get("KUBECONFIG")
    try:
        if inside and context is None and kubeconfig is None:
            config.load_incluster_config(client_configuration=settings)
            own = Path(_NAMESPACE_FILE).read_text().strip()
        else:
            file = str(kubeconfig) if kubeconfig else None
            config.load_kube_config(file, context, client_configuration=settings)
            named, current = config.list_kube_config_contexts(file)
            chosen = [entry for entry in named if entry["name"] == context] or [current]
            own = chosen[0]["context"].get("namespace")
    except (config.ConfigException, OSError, ValueError, TypeError) as error:
        raise KubernetesError(_no_context(context, kubeconfig, error), 400) from None
    api = KubeApi(settings, namespace or own or "default")
    if api.version < OLDEST:
        raise KubernetesError(
            f"the cluster at {api.url} is Kubernetes {'.'.join(map(str, api.version))}; Presage "
            f"needs {'.'.join(map(str, OLDEST))} or newer",
            400,
        )
    return api


class KubeApi:
    """An API server, and who we are there."""

    def __init__(self, settings: Any, namespace: str = "default") -> None:
        self.url = str(settings.host).rstrip("/")
        self.namespace = namespace
        """Where we are when nobody says otherwise."""
        self._settings = settings
        self._pool = _pool(settings)
        said = self.request("GET", "/version")
        numbers = [re.sub(r"\D.*", "", str(said.get(part, ""))) for part in ("major", "minor")]
        self.version = (int(numbers[0] or 0), int(numbers[1] or 0))

    # -- objects --------------------------------------------------------------------------------

    def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        """One object."""
        return self.request("GET", self._path(resource, namespace, name))

    def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
    ) -> ObjectList:
        """All objects, of one namespace or of all, page by page."""
        path = resource.path(namespace)
        query: dict[str, Any] = {"limit": _PAGE}
        items: list[Json] = []
        while True:
            try:
                page = self.request("GET", path, query=_select(query, labels, fields))
            except KubernetesError as error:
                if error.status != 410 or "continue" not in query:
                    raise
                query, items = {}, []  # the list changed under us for too long: all at once, then
                continue
            items += page.get("items") or ()
            meta = page.get("metadata") or {}
            if not meta.get("continue"):
                return ObjectList(items, str(meta.get("resourceVersion", "")))
            query = {"limit": _PAGE, "continue": meta["continue"]}

    def create(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        name: str = "",
        sub: str = "",
        dry: bool = False,
    ) -> Json:
        """Make an object, or one of a subresource (a Binding, an Eviction); `dry`: only ask
        whether that would be accepted."""
        query = {"dryRun": "All"} if dry else None
        path = self._path(resource, namespace, name, sub)
        return self.request("POST", path, query=query, body=body)

    def replace(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        sub: str = "",
    ) -> Json:
        """Put an object in the place of what is there; 409 if that is newer than the body says."""
        return self.request("PUT", self._path(resource, namespace, name, sub), body=body)

    def patch(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        namespace: str | None = None,
        *,
        sub: str = "",
    ) -> Json:
        """Change parts of an object: a mapping is merged, a list is a JSON patch."""
        kind = PATCH_MERGE if isinstance(body, Mapping) else PATCH_JSON
        return self.request(
            "PATCH", self._path(resource, namespace, name, sub), body=body, kind=kind
        )

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        grace_s: int | None = None,
    ) -> None:
        """Delete an object, if it is (still) there; with `uid`, no other of the same name."""
        body: Json = {"propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            self.request("DELETE", self._path(resource, namespace, name), body=body)
        except KubernetesError as error:
            gone = error.status == 404 or (uid is not None and error.status == 409)
            if not gone:
                raise

    def watch(
        self,
        resource: Resource,
        version: str,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        opened: MutableSequence[Any] | None = None,
    ) -> Iterator[tuple[str, Json]]:
        """What changes after a version: ADDED, MODIFIED, DELETED or BOOKMARK, and the object.
        Ends when the connection does. Raises KubernetesError, with status 410 when the version
        is too old. The open answer is put into `opened`, for whoever wants to `hang_up`."""
        query = _select(
            {
                "watch": "true",
                "resourceVersion": version,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": _WATCH_S,
            },
            labels,
            fields,
        )
        answer = self._send(
            "GET", resource.path(namespace), query, timeout_s=_WATCH_S + _SLACK_S, stream=True
        )
        if opened is not None:
            opened[:] = [answer]
        try:
            for line in _lines(answer, self.url):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = int(event["object"].get("code") or 0)
                    raise KubernetesError(str(event["object"].get("message")), status)
                yield event["type"], event["object"]
        finally:
            answer.close()

    def log(
        self,
        pod: str,
        namespace: str | None = None,
        *,
        container: str = "",
        since_s: int | None = None,
        tail: int | None = None,
        limit: int | None = None,
        timestamps: bool = False,
    ) -> bytes:
        """What a container has printed, as its kubelet has it; KubernetesError where that cannot
        be reached."""
        query = {
            "container": container or None,
            "sinceSeconds": since_s,
            "tailLines": tail,
            "limitBytes": limit,
            "timestamps": "true" if timestamps else None,
        }
        given = {name: value for name, value in query.items() if value is not None}
        answer = self._send("GET", self._path(PODS, namespace, pod, "log"), given)
        return bytes(answer.data)

    def follow_log(
        self, pod: str, namespace: str | None = None, *, container: str = ""
    ) -> Iterator[bytes]:
        """The same as it is printed, until the container has ended."""
        query = {"follow": "true", **({"container": container} if container else {})}
        path = self._path(PODS, namespace, pod, "log")
        answer = self._send("GET", path, query, timeout_s=None, stream=True)
        try:
            yield from _parts(answer, self.url)
        finally:
            answer.close()

    def may(
        self, verb: str, resource: Resource, namespace: str | None = None, *, sub: str = ""
    ) -> bool:
        """Whether we may do something, in one namespace or in all."""
        asked = {
            "verb": verb,
            "group": resource.group,
            "resource": resource.plural,
            "subresource": sub,
            "namespace": namespace or "",
        }
        review = self.create(_REVIEWS, {"spec": {"resourceAttributes": asked}})
        return bool(review.get("status", {}).get("allowed"))

    def offers(self, sub: str) -> bool:
        """Whether the server has a subresource of the core group, such as `pods/resize`."""
        listed = self.request("GET", "/api/v1").get("resources") or ()
        return any(one.get("name") == sub for one in listed)

    async def stream(
        self,
        pod: str,
        namespace: str | None,
        sub: str,
        query: Sequence[tuple[str, str]],
        protocol: str,
    ) -> ClientConnection:
        """A WebSocket of a subresource that has streams, `exec` or `portforward`: a message is the
        number of a stream and its bytes. Whoever has it closes it."""
        from websockets.asyncio.client import connect as dial
        from websockets.exceptions import InvalidHandshake, InvalidStatus
        from websockets.typing import Subprotocol

        path = self._path(PODS, namespace, pod, sub)
        url = f"ws{self.url.removeprefix('http')}{path}?{urlencode(query)}"
        try:
            return await dial(
                url,
                additional_headers=self._who(),
                subprotocols=[Subprotocol(protocol)],
                compression=None,
                ssl=_tls(self._settings) if url.startswith("wss") else None,
                server_hostname=self._settings.tls_server_name or None,
                proxy=self._settings.proxy or None,
                open_timeout=_TIMEOUT_S,
                max_size=1 << 20,
            )
        except InvalidStatus as refused:
            answer = refused.response
            raise self._refusal(
                "GET", path, None, answer.status_code, bytes(answer.body or b"")
            ) from None
        except (InvalidHandshake, OSError) as error:
            raise KubernetesError(_unreachable(self.url, error)) from None

    # -- requests -------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        kind: str = "application/json",
        timeout_s: float = _TIMEOUT_S,
    ) -> Json:
        """One request; the JSON of its answer."""
        answer = self._send(method, path, query, body=body, kind=kind, timeout_s=timeout_s)
        try:
            return dict(json.loads(answer.data or b"{}"))
        except ValueError:
            text = f"{self.url}{path} does not answer as a Kubernetes API server does"
            raise KubernetesError(text) from None

    def _path(
        self, resource: Resource, namespace: str | None, name: str = "", sub: str = ""
    ) -> str:
        where = (namespace or self.namespace) if resource.namespaced else None
        return resource.path(where, name, sub)

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        *,
        body: Any = None,
        kind: str = "application/json",
        timeout_s: float | None = _TIMEOUT_S,
        stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        import urllib3

        headers = {"Accept": "application/json, */*", "User-Agent": "presage", **self._who()}
        if body is not None:
            headers["Content-Type"] = kind
        url = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            answer = self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=urllib3.Timeout(connect=_CONNECT_S, read=timeout_s),
                preload_content=not stream,
                retries=False,
            )
            if answer.status >= 400:
                raise self._refusal(method, path, query, answer.status, answer.data)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise KubernetesError(_unreachable(self.url, error)) from None
        return answer

    def _who(self) -> dict[str, str]:
        """Who we are, as headers say it."""
        known = self._settings.auth_settings().values()  # renewed there, if need be
        return {
            one["key"]: one["value"] for one in known if one["in"] == "header" and one["value"]
        }

    def _refusal(
        self, method: str, path: str, query: Mapping[str, Any] | None, status: int, data: bytes
    ) -> KubernetesError:
        """What the server said, in words that name what is missing."""
        try:
            said = str(json.loads(data).get("message") or "")
        except (ValueError, AttributeError):
            said = data.decode("utf-8", "replace").strip()
        if status == 401:
            said = f"the cluster at {self.url} does not accept these credentials; log in again"
        elif status == 403 and "is forbidden: User" in said:
            said = _forbidden(said, method, path, query)
        return KubernetesError(said or f"HTTP status {status} for {method} {path}", status)


def hang_up(answer: Any) -> None:
    """End an open answer that another thread reads."""
    sock = getattr(answer.connection, "sock", None)
    if sock is not None:
        with suppress(OSError):
            # Not the method of the SSL socket: after that, the other thread would read ciphertext.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _pool(settings: Any) -> urllib3.PoolManager:
    import urllib3

    options: dict[str, Any] = {
        "num_pools": 4,
        "maxsize": _CONNECTIONS,
        "ca_certs": settings.ssl_ca_cert,
        "cert_file": settings.cert_file,
        "key_file": settings.key_file,
        "cert_reqs": "CERT_REQUIRED" if settings.verify_ssl else "CERT_NONE",
    }
    if settings.tls_server_name:
        options["server_hostname"] = settings.tls_server_name
    if settings.assert_hostname is not None:
        options["assert_hostname"] = settings.assert_hostname
    if settings.proxy:
        return urllib3.ProxyManager(
            settings.proxy, proxy_headers=settings.proxy_headers, **options
        )
    return urllib3.PoolManager(**options)


def _tls(settings: Any) -> ssl.SSLContext:
    """How we know the server, and it us."""
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    if settings.assert_hostname is False or not settings.verify_ssl:
        context.check_hostname = False
    if not settings.verify_ssl:
        context.verify_mode = ssl.CERT_NONE
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    return context


def _select(query: Mapping[str, Any], labels: str, fields: str) -> dict[str, Any]:
    chosen = {"labelSelector": labels, "fieldSelector": fields}
    return {**query, **{name: value for name, value in chosen.items() if value}}


def _lines(answer: urllib3.BaseHTTPResponse, url: str) -> Iterator[bytes]:
    """Whole lines as they come."""
    rest = b""
    for part in _parts(answer, url):
        *lines, rest = (rest + part).split(b"\n")
        yield from lines


def _parts(answer: urllib3.BaseHTTPResponse, url: str) -> Iterator[bytes]:
    import urllib3

    try:
        yield from answer.stream(1 << 16)
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise KubernetesError(_unreachable(url, error)) from None


def _no_context(context: str | None, kubeconfig: Path | None, error: Exception) -> str:
    from kubernetes import config

    try:
        file = str(kubeconfig) if kubeconfig else None
        names = ", ".join(entry["name"] for entry in config.list_kube_config_contexts(file)[0])
    except (config.ConfigException, OSError, ValueError, TypeError, KeyError):
        names = ""
    if context is not None and names:
        return f"there is no context {context!r}; the kubeconfig has: {names}"
    said = str(error).strip().splitlines()
    return (
        "no Kubernetes cluster is configured here: set KUBECONFIG, or run inside a cluster "
        f"({said[0] if said else type(error).__name__})"
    )


def _unreachable(url: str, error: Exception) -> str:
    text = str(error)
    for sign in (
        "Connection refused",
        "timed out",
        "certificate verify failed",
        "Name or service",
    ):
        if sign in text:
            text = sign
    return f"no Kubernetes cluster answers at {url}: {text}"


def _forbidden(said: str, method: str, path: str, query: Mapping[str, Any] | None) -> str:
    match = re.search(
        r'User "(.*?)" cannot (\S+) resource "(.*?)"(?: in API group "(.*?)")?', said
    )
    if not match:
        return said
    user, verb, resource, group = match.groups()
    space = re.search(r'in the namespace "(.*?)"', said)
    where = f"in namespace {space[1]}" if space else "in the whole cluster"
    kind = "Role" if space else "ClusterRole"
    named = f"{resource}.{group}" if group else resource
    return f"{user} may not {verb} {named} {where}; give it a {kind} with {verb} on {named}"
