"""The drop-in scheduler on a real API server: pods of others, gangs of them, and what goes
wrong."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from presage.policy.config import PolicyConfig
from tests.executors.foreign_pods import PODS, drop_in, gang, pod
from tests.kubernetes_fire import RESET_IN_HANDSHAKE
from tests.kubernetes_plane import Plane
from tests.kubernetes_pods_fire import PodsFire, pods_under_fire
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.engine


def test_a_lone_pod_starts_and_ends_and_leaves_its_room(plane: Plane) -> None:
    plane.add_node("n1", 1)
    with drop_in(plane) as cluster:
        cluster.add(pod("one"), pod("two"), pod("web", 0))
        cluster.until(lambda: len(cluster.bound()) == 2)
        cluster.settle()
        assert cluster.bound() == {"one": "n1", "web": "n1"}
        cluster.until(lambda: cluster.state_of("one") == "running")
        cluster.end("one")
        cluster.until(lambda: "two" in cluster.bound())
        assert cluster.state_of("one") == "succeeded"
        assert not cluster.plane.call("GET", f"{PODS}/one")["metadata"].get("deletionTimestamp")


def test_four_gangs_of_four_on_eight_gpus_never_deadlock(plane: Plane) -> None:
    for name in ("n1", "n2"):
        plane.add_node(name, 4)
    gangs = {f"job{k}": gang(f"job{k}", 4) for k in range(4)}
    with drop_in(plane) as cluster:
        for turn in range(4):  # one pod of each in turn, as their controllers would
            cluster.add(*(pods[turn] for pods in gangs.values()))
        cluster.until(lambda: len(cluster.bound()) == 8)
        cluster.settle()
        whole = Counter(name.split("-")[0] for name in cluster.bound())
        assert sorted(whole.values()) == [4, 4]
        for _ in range(4):
            for name in gangs:
                if cluster.state_of(name) == "running":
                    cluster.end(name)
            cluster.settle()
        cluster.until(lambda: all(cluster.state_of(name) == "succeeded" for name in gangs))


def test_a_gang_waits_until_it_is_whole_and_says_so(plane: Plane) -> None:
    plane.add_node("n1", 8)
    with drop_in(plane) as cluster:
        first, second, third = gang("three", 3)
        cluster.add(first, second)
        cluster.settle()
        assert cluster.bound() == {}
        said = ("GangIncomplete", "2 of the 3 pods of gang three are there")
        eventually(lambda: said in cluster.events("three-0"))
        cluster.add(third)
        cluster.until(lambda: len(cluster.bound()) == 3)


def test_what_others_hold_is_not_given_away(plane: Plane) -> None:
    plane.add_node("n1", 4)
    cluster_pods = [pod(f"theirs-{k}", 2, scheduler="other") for k in range(2)]
    with drop_in(plane) as cluster:
        cluster.add(*cluster_pods)
        for theirs in cluster_pods:
            name = theirs["metadata"]["name"]
            target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
            body = {"metadata": {"name": name}, "target": target}
            cluster.plane.call("POST", f"{PODS}/{name}/binding", body)
        cluster.settle(3)
        cluster.add(*gang("ours", 2, 1))
        cluster.settle()
        assert cluster.bound("ours") == {}
        cluster.delete("theirs-1")
        cluster.until(lambda: len(cluster.bound("ours")) == 2)


def test_labels_taints_and_what_is_not_understood(plane: Plane) -> None:
    plane.add_node("a", 4, pool="web")
    taint = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
    plane.add_node("b", 4, pool="ml", taint=taint)
    with drop_in(plane) as cluster:
        bears = [{"key": "gpu", "operator": "Exists"}]
        cluster.add(
            pod("ml", nodeSelector={"pool": "ml"}, tolerations=bears),
            pod("shy", nodeSelector={"pool": "ml"}),
            pod("odd", topologySpreadConstraints=[
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                 "labelSelector": {}}]),
        )  # fmt: skip
        cluster.until(lambda: "ml" in cluster.bound())
        cluster.settle()
        assert cluster.bound() == {"ml": "b"}
        text = "Presage does not place this pod: it has topologySpreadConstraints that must hold"
        eventually(lambda: ("NotPlaced", text) in cluster.events("odd"))
        plane.call("PATCH", "/api/v1/nodes/b", {"spec": {"taints": None}})
        cluster.until(lambda: cluster.bound().get("shy") == "b")


def test_a_pod_that_can_never_fit_waits_for_a_node_that_could_hold_it(plane: Plane) -> None:
    plane.add_node("small", 2)
    with drop_in(plane) as cluster:
        cluster.add(pod("big", 4))
        cluster.until(lambda: cluster.state_of("big") == "failed")
        cluster.until(lambda: any(r == "NeverFits" for r, _ in cluster.events("big")))
        plane.add_node("large", 8)
        cluster.until(lambda: cluster.bound() == {"big": "large"})


def test_a_pod_deleted_while_its_gang_waits_breaks_the_gang_alone(plane: Plane) -> None:
    plane.add_node("n1", 2)
    with drop_in(plane) as cluster:
        cluster.add(pod("now", 2), *gang("later", 2))
        cluster.until(lambda: "now" in cluster.bound() and cluster.state_of("later"))
        cluster.delete("later-0")
        cluster.until(lambda: cluster.state_of("later") == "cancelled")
        cluster.end("now")
        cluster.settle()
        assert cluster.bound("later") == {}
        cluster.over.clear()
        cluster.add(gang("later", 2)[0])
        cluster.until(lambda: len(cluster.bound("later")) == 2)


def test_a_failed_pod_and_one_that_ran_out_of_memory_say_so(plane: Plane) -> None:
    plane.add_node("n1", 2)
    with drop_in(plane) as cluster:
        cluster.add(pod("oom"))
        cluster.until(lambda: cluster.state_of("oom") == "running")
        ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
        status = [{"name": "main", "state": ended, "ready": False, "restartCount": 0,
                   "image": "x", "imageID": ""}]  # fmt: skip
        cluster.set_phase("oom", "Failed", containerStatuses=status)
        cluster.until(lambda: cluster.state_of("oom") == "failed")
        exits = [event for _, event in cluster.store.read() if type(event).__name__ == "JobExited"]
        assert exits[-1].reason is not None  # type: ignore[union-attr]
        assert exits[-1].reason.code == "out_of_memory"  # type: ignore[union-attr]


def test_pods_of_a_controller_are_preempted_and_lone_ones_are_not(plane: Plane) -> None:
    plane.add_node("n1", 4)
    policy = PolicyConfig(order="priority", preempt="priority")
    owner = plane.call("POST", "/api/v1/namespaces/default/configmaps", {
        "metadata": {"name": "controller"}})  # fmt: skip
    owner |= {"apiVersion": "v1", "kind": "ConfigMap"}
    with drop_in(plane, policy) as cluster:
        cluster.add(pod("lone", 2), pod("made", 2, owner))
        cluster.until(lambda: len(cluster.bound()) == 2)
        cluster.until(lambda: cluster.state_of("made") == "running")
        cluster.add(pod("urgent", 2, priority=None, labels={"x": "y"}) | {})
        cluster.settle()
        assert "urgent" not in cluster.bound()
        plane.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {
            "metadata": {"name": "high"}, "value": 1000})  # fmt: skip
        cluster.add(pod("now", 2, priorityClassName="high"))
        cluster.until(lambda: "now" in cluster.bound())
        assert "lone" in cluster.bound()
        assert "made" not in cluster.bound()
        assert cluster.state_of("made") == "failed"
    plane.call("DELETE", "/apis/scheduling.k8s.io/v1/priorityclasses/high")


def test_a_pod_made_again_takes_the_place_of_the_one_that_ended(plane: Plane) -> None:
    plane.add_node("n1", 2)
    with drop_in(plane) as cluster:
        cluster.add(*gang("pair", 2), pod("next"))
        cluster.until(lambda: cluster.state_of("pair") == "running")
        cluster.set_phase("pair-0", "Failed")
        cluster.settle(3)
        made = gang("pair", 2)[0]
        made["metadata"]["name"] = "pair-0-again"
        cluster.add(made)
        cluster.until(lambda: "pair-0-again" in cluster.bound())
        cluster.settle(3)
        assert "next" not in cluster.bound()
        cluster.end("pair")
        cluster.until(lambda: "next" in cluster.bound())


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_a_restart_finishes_a_gang_that_was_bound_in_part(plane: Plane, bound: int) -> None:
    plane.add_node("n1", 1)
    plane.add_node("n2", 1)
    with drop_in(plane) as cluster:
        held = cluster.adopted
        binder, cluster.adopted._binder.bind = held._binder, lambda *given: None  # type: ignore[method-assign]
        cluster.add(*gang("pair", 2))
        cluster.until(lambda: cluster.state_of("pair") == "starting")
        del binder.bind
        (run,) = held._runs.values()
        for slot in sorted(run.members)[:bound]:
            member = held._bound(run, slot)
            assert member is not None
            assert binder._bind(run.job, member) == ""
        assert len(cluster.bound()) == bound
        cluster.restart()
        cluster.until(lambda: cluster.state_of("pair") == "running")
        assert sorted(cluster.bound().values()) == ["n1", "n2"]


def test_a_pod_that_went_away_before_it_was_bound_undoes_the_gang(plane: Plane) -> None:
    plane.add_node("n1", 4)
    owner = plane.call("POST", "/api/v1/namespaces/default/configmaps", {
        "metadata": {"name": "controller"}})  # fmt: skip
    owner |= {"apiVersion": "v1", "kind": "ConfigMap"}
    with drop_in(plane) as cluster:
        held = cluster.adopted
        later: list[object] = []
        binder = held._binder
        binder.bind = lambda *given: later.append(given)  # type: ignore[method-assign]
        cluster.add(*gang("pair", 2, owner=owner))
        cluster.until(lambda: later)
        cluster.delete("pair-1")
        del binder.bind
        binder.bind(*later[0])  # type: ignore[misc]
        cluster.until(lambda: not any(p["metadata"]["name"] == "pair-0" for p in cluster.pods()))
        cluster.until(lambda: cluster.state_of("pair") == "failed")
        cluster.over.clear()
        cluster.add(*gang("pair", 2, owner=owner))  # as their controller does
        cluster.until(lambda: cluster.state_of("pair") == "running")


def test_the_api_server_dies_and_comes_back(plane: Plane) -> None:
    plane.add_node("n1", 4)
    with drop_in(plane) as cluster:
        cluster.add(*gang("before", 2))
        cluster.until(lambda: cluster.state_of("before") == "running")
        plane.kill_api()
        for _ in range(5):
            cluster.adopted.wait(0.02)
            cluster._handle([])
        plane.start_api()
        cluster.add(*gang("after", 2))
        cluster.until(lambda: cluster.state_of("after") == "running")
        assert len(cluster.bound()) == 4


def test_a_restart_learns_of_pods_that_ended_or_went_meanwhile(plane: Plane) -> None:
    plane.add_node("n1", 6)
    with drop_in(plane) as cluster:
        cluster.add(*gang("done", 2), *gang("part", 2), *gang("gone", 2))
        cluster.until(lambda: len(cluster.bound()) == 6)
        for name in ("done", "part", "gone"):
            cluster.until(lambda name=name: cluster.state_of(name) == "running")  # type: ignore[misc]
        cluster.end("done")
        cluster.delete("part-0", "gone-0", "gone-1")
        cluster.restart()
        cluster.until(lambda: cluster.state_of("done") == "succeeded")
        cluster.until(lambda: cluster.state_of("gone") == "failed")
        cluster.settle()
        assert cluster.state_of("part") == "running"  # its controller says what follows
        assert "part-1" in cluster.bound()
        cluster.add(gang("part", 2)[0])
        cluster.until(lambda: "part-0" in cluster.bound())


@pytest.mark.filterwarnings(RESET_IN_HANDSHAKE)
@pytest.mark.parametrize(
    "fire",
    [
        pytest.param(
            PodsFire(
                gangs=6, nodes=2, api_kills=1, pod_deletes=3, watch_drops=2, restarts=1, runs_s=0.1
            ),
            marks=pytest.mark.slow,
            id="short",
        ),
        pytest.param(PodsFire(), marks=pytest.mark.soak, id="whole"),
    ],
)
def test_gangs_of_others_under_fire(plane: Plane, fire: PodsFire) -> None:
    result = pods_under_fire(plane, fire, lambda line: None)
    gc.collect()
    assert result.breaches == []
    assert result.undone == []
    assert result.half == []
    assert result.longest_partly_s < PATIENCE_S
    assert result.done["kill the API server"] == fire.api_kills
