"""Requests to a real API server: errors in one line, and copies that outlast its restarts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from presage.executors.kubernetes import api as api_module
from presage.executors.kubernetes.api import CONFIG_MAPS, NODES, PODS, KubeApi, connect
from presage.executors.kubernetes.reflect import Reflector
from presage.model.errors import KubernetesError
from tests.kubernetes_plane import Plane
from tests.waiting import eventually

pytestmark = pytest.mark.engine


@pytest.fixture
def api(plane: Plane) -> KubeApi:
    """The cluster, as its admin."""
    return connect(kubeconfig=plane.kubeconfig())


@pytest.fixture
def maps(api: KubeApi) -> Iterator[Reflector]:
    """The ConfigMaps of the namespace with a label."""
    reflector = Reflector(api, CONFIG_MAPS, "default", labels="test=yes")
    reflector.start()
    yield reflector
    reflector.close()


def _map(name: str, **data: str) -> dict[str, object]:
    return {"metadata": {"name": name, "labels": {"test": "yes"}}, "data": data}


def _names(reflector: Reflector) -> set[str]:
    return {name for _, name in reflector.objects()}


def test_objects_come_and_go(api: KubeApi) -> None:
    assert api.version >= (1, 20)
    assert api.namespace == "default"
    made = api.create(CONFIG_MAPS, _map("one", a="1"))
    assert api.get(CONFIG_MAPS, "one")["data"] == {"a": "1"}
    api.patch(CONFIG_MAPS, "one", {"data": {"b": "2"}})
    api.patch(CONFIG_MAPS, "one", [{"op": "remove", "path": "/data/a"}])
    assert api.get(CONFIG_MAPS, "one")["data"] == {"b": "2"}
    with pytest.raises(KubernetesError) as conflict:
        api.replace(CONFIG_MAPS, "one", made)
    assert conflict.value.status == 409
    api.delete(CONFIG_MAPS, "one", uid="another")
    assert api.get(CONFIG_MAPS, "one")
    api.delete(CONFIG_MAPS, "one", uid=made["metadata"]["uid"])
    api.delete(CONFIG_MAPS, "one")
    with pytest.raises(KubernetesError) as missing:
        api.get(CONFIG_MAPS, "one")
    assert missing.value.status == 404


def test_a_list_comes_in_pages(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "_PAGE", 2)
    for number in range(5):
        api.create(CONFIG_MAPS, _map(f"page-{number}"))
    listing = api.list(CONFIG_MAPS, "default", labels="test=yes")
    assert [item["metadata"]["name"] for item in listing.items] == [f"page-{n}" for n in range(5)]
    assert listing.version


def test_a_copy_hears_of_changes_in_order(api: KubeApi, maps: Reflector) -> None:
    api.create(CONFIG_MAPS, _map("x", n="1"))
    api.patch(CONFIG_MAPS, "x", {"data": {"n": "2"}})
    api.delete(CONFIG_MAPS, "x")
    changes = []

    def three() -> bool:
        changes.extend(maps.changes())
        return len(changes) >= 3

    eventually(three)
    seen = [(change.object["data"]["n"], change.deleted) for change in changes]
    assert seen == [("1", False), ("2", False), ("2", True)]
    assert maps.lists == 1


def test_a_copy_is_whole_after_the_api_server_was_killed(
    plane: Plane, api: KubeApi, maps: Reflector
) -> None:
    api.create(CONFIG_MAPS, _map("before"))
    api.create(CONFIG_MAPS, _map("goes"))
    eventually(lambda: _names(maps) == {"before", "goes"})
    plane.kill_api()
    eventually(lambda: maps.trouble)
    assert "no Kubernetes cluster answers at" in maps.trouble
    plane.start_api()
    api.delete(CONFIG_MAPS, "goes")
    api.create(CONFIG_MAPS, _map("after"))
    eventually(lambda: _names(maps) == {"before", "after"})
    eventually(lambda: not maps.trouble)
    assert maps.away_s() == 0.0


def test_a_version_that_is_too_old_makes_it_list_again(api: KubeApi, maps: Reflector) -> None:
    api.create(CONFIG_MAPS, _map("one"))
    eventually(lambda: _names(maps) == {"one"})
    maps.changes()
    maps._version = "1"  # as after a long absence: the API server has forgotten what came then
    maps.drop()
    eventually(lambda: maps.lists == 2)
    assert not maps.changes()  # nothing was different
    api.create(CONFIG_MAPS, _map("two"))
    eventually(lambda: _names(maps) == {"one", "two"})


def test_a_missing_permission_is_named(plane: Plane) -> None:
    nobody = connect(kubeconfig=plane.kubeconfig("nobody"))
    with pytest.raises(KubernetesError) as refused:
        nobody.list(PODS, "default")
    assert str(refused.value) == (
        "nobody may not list pods in namespace default; give it a Role with list on pods"
    )
    with pytest.raises(KubernetesError, match="nobody may not list nodes in the whole cluster"):
        Reflector(nobody, NODES).start()
    assert not nobody.may("create", PODS, "default", sub="binding")
    plane.allow("watcher", {"resources": ["pods"], "verbs": ["list"]})
    watcher = connect(kubeconfig=plane.kubeconfig("watcher"))
    assert eventually(lambda: watcher.may("list", PODS, "default"))
    assert not watcher.may("watch", PODS, "default")


def test_credentials_that_are_not_known(plane: Plane, tmp_path: Path) -> None:
    config = json.loads(plane.kubeconfig().read_text())
    config["users"][0]["user"]["token"] = "stale"
    (tmp_path / "config").write_text(json.dumps(config))
    with pytest.raises(KubernetesError, match="does not accept these credentials; log in again"):
        connect(kubeconfig=tmp_path / "config")


def test_no_cluster_and_no_context(plane: Plane, tmp_path: Path) -> None:
    config = json.loads(plane.kubeconfig().read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "config").write_text(json.dumps(config))
    with pytest.raises(KubernetesError, match=r"answers at https://127.0.0.1:1: Connection ref"):
        connect(kubeconfig=tmp_path / "config")
    with pytest.raises(KubernetesError, match="there is no context 'prod'; the kubeconfig has: t"):
        connect("prod", kubeconfig=plane.kubeconfig())
    with pytest.raises(KubernetesError, match="no Kubernetes cluster is configured here"):
        connect(kubeconfig=tmp_path / "none")


def test_an_api_server_that_is_too_old(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "OLDEST", (1, 999))
    with pytest.raises(
        KubernetesError, match=r"is Kubernetes 1.\d+; Presage needs 1.999 or newer"
    ):
        connect(kubeconfig=plane.kubeconfig())
