"""Submit the training of this folder from Python, and follow it; `presage serve` must run."""

from pathlib import Path

import presage

HERE = Path(__file__).parent


def main() -> None:
    with presage.Client() as server:  # PRESAGE_URL, PRESAGE_TOKEN
        job = server.submit(HERE / "presage.yaml")
        print(job.id, job.status, job.explain().reason.text)
        for line in job.logs(follow=True):
            print(line)
        print(job.wait().status, job.reason.text)
        free = sum(node.free_gpus for node in server.nodes())
        print(f"{free:g} GPUs are free, {len(list(server.jobs(status=['QUEUED'])))} jobs wait")


if __name__ == "__main__":
    main()
