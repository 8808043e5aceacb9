"""A profile for tests that need one."""

from presage.model.profile import Distribution, Profile

SPREAD = Distribution(1.0, 1.0, 2.0, 3.0)
PROFILE = Profile(
    signature="0a1b",
    command=("python", "train.py"),
    started_s=1e9,
    duration_s=2.0,
    exit_code=0,
    samples=40,
    hz=20.0,
    cpu_cores=SPREAD,
    rss_mib=SPREAD,
    read_bytes_s=SPREAD,
    write_bytes_s=SPREAD,
    net_sent_bytes_s=SPREAD,
    net_received_bytes_s=SPREAD,
)
